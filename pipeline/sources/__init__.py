"""Where prompts come from: JSONL files, reasoning-gym tasks, a plug-in, or a mix of these.

The prompt producer and the learner's cloning phase read the same sources. Nothing heavy is imported before a source
of that kind is opened.
"""

from pipeline.sources.base import PromptItem, SkippedLine, Source
from pipeline.sources.mixing import MixSource
from pipeline.sources.opening import open_source
from pipeline.sources.settings import SourceSettings

__all__ = ["MixSource", "PromptItem", "SkippedLine", "Source", "SourceSettings", "open_source"]
