"""Where prompts come from: JSONL files, reasoning-gym tasks, or a plug-in.

The prompt producer and the learner's cloning phase read the same sources. Nothing heavy is imported before a source
of that kind is opened.
"""

from pipeline.sources.base import PromptItem, SkippedLine, Source
from pipeline.sources.opening import open_source
from pipeline.sources.settings import SourceSettings

__all__ = ["PromptItem", "SkippedLine", "Source", "SourceSettings", "open_source"]
