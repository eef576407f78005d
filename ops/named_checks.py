"""What the settings name, looked at before anything starts: files, folders, plug-ins, packages, credentials.

Role: behind `rlweave up`, and all that `up --check` does beside `ops.run_checks`.
Data in: a `RunFile` and the stages that run here; each looks only at what it needs. Data out: nothing, or an error.
Invariants: nothing is connected to, and what is looked at is left as it was; users' plug-ins are imported.
Failure: `SettingsError`, `PluginError` or `WeightsError` naming the setting, the same that the stage would end with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from consumers.learner.settings import CloningSettings
from consumers.rewards.opening import open_plugin
from consumers.scheduler.stage import load_policy
from ops.addresses import LOCAL, WITHOUT
from ops.device_checks import check_devices
from ops.outputs import check_file, check_folder
from ops.run_file import RunFile
from ops.wiring import SINGLE_STAGES
from pipeline.credentials import client_config, redis_client
from pipeline.engines.backends import check_backend
from pipeline.environments.opening import open_environment
from pipeline.sources import Source, open_source
from pipeline.uploads.target import check_target
from pipeline.weights.tls import client_context, server_context
from pipeline.weights.tokens import run_token
from schemas.errors import SettingsError
from topics.access import ADMIN, READER


def check_named(run_file: RunFile, *, stages: Sequence[str]) -> None:
    """See that all that these stages need is there.

    Raises:
        SettingsError, PluginError, WeightsError: something is not, or cannot be opened.
    """
    check_folder(run_file.run.folder, setting="run.dir")
    if run_file.reference is None:  # nothing of it is started, so it needs no credentials
        stages = [stage for stage in stages if stage != "reference"]
    _check_credentials(run_file, stages=stages)
    if "learner" in stages or "rollout" in stages:
        check_model(run_file)
    check_devices(run_file, stages=stages)
    if "learner" in stages:
        _check_learner(run_file)
    if "reference" in stages and run_file.reference is not None and run_file.reference.path is not None:
        _check_model(run_file.reference.path, setting="reference.path")
    if "rollout" in stages:
        check_backend(run_file.rollout.engine)
        if run_file.environment is not None:
            open_environment(run_file.environment)
    for reward in run_file.rewards.values() if "reward" in stages else ():
        opened = open_plugin(reward)
        if opened is not None:
            opened.pool.close()
    if "evaluator" in stages and run_file.evaluation:
        _check_evaluator(run_file)
    if "scheduler" in stages:
        load_policy(run_file.scheduler.policy)
    if "prompts" in stages:
        open_source(run_file.prompts.source, seed=run_file.run.seed)


def check_model(run_file: RunFile) -> None:
    """See that the model is there: without it learner and rollouts would be started again and again in vain.

    Raises:
        SettingsError: it is no directory with a configuration.
    """
    _check_model(run_file.model.path, setting="model.path")


def _check_model(path: Path, *, setting: str) -> None:
    if not (path / "config.json").is_file():
        raise SettingsError(
            f"{setting} = {path} has no config.json, so it is not a directory of a transformers model",
            hint="give the directory that save_pretrained wrote; paths are relative to the working directory",
        )


def launcher_role(stages: Sequence[str]) -> str:
    """Whose user `rlweave up` is: a part that cannot have made the topics needs no right to."""
    return ADMIN if SINGLE_STAGES & set(stages) else READER


def teller_role(stages: Sequence[str]) -> str:
    """Whose user writes the events of `rlweave up`: its own, or, where that may only read, that of a stage here."""
    role = launcher_role(stages)
    return role if role == ADMIN else stages[0]


def _check_learner(run_file: RunFile) -> None:
    learner = run_file.learner
    if learner.oracle_file is not None:
        check_file(learner.oracle_file, setting="learner.oracle_file")
    if learner.checkpoint.upload is not None:
        check_target(learner.checkpoint.upload)
    if learner.advantage is not None or learner.loss.function is not None or learner.algorithm == "dpo":
        from consumers.learner.algorithms import recipe_of  # noqa: PLC0415 - needs torch, which is with the learner

        recipe_of(learner.algorithm, learner.loss, advantage=learner.advantage)
    if learner.lora is not None:
        from consumers.learner.lora import check_targets  # noqa: PLC0415 - needs torch, which is with the learner

        check_targets(run_file.model.path, learner.lora)
    if learner.cloning.num_steps > 0 and learner.cloning.source is not None:
        _check_demonstrations(open_source(learner.cloning.source, seed=run_file.run.seed), learner.cloning)


def _check_demonstrations(source: Source, cloning: CloningSettings) -> None:
    """The learner would find the end of them only once it has cloned with all there are, and `learner.cloning` cannot
    change in a run."""
    num_needed = (cloning.num_steps - 1) * cloning.batch_size + 1  # the last batch may be smaller
    if source.num_items is not None and source.num_items < num_needed:
        raise SettingsError(
            f"learner.cloning: {cloning.num_steps} steps of {cloning.batch_size} need {num_needed} demonstrations or "
            f"more, source {source.name} ends after {source.num_items}",
            hint="allow more learner.cloning.source.epochs, or lower learner.cloning.num_steps or batch_size",
        )


def _check_evaluator(run_file: RunFile) -> None:
    check_backend(run_file.evaluator.engine)
    for chosen in run_file.evaluation.values():
        open_source(chosen.source, seed=run_file.run.seed)
        opened = open_plugin(chosen.scoring)
        if opened is not None:
            opened.pool.close()


def _check_credentials(run_file: RunFile, *, stages: Sequence[str]) -> None:
    """Users, passwords, certificates and tokens that are in files; those of local services are made by them."""
    if run_file.kafka.bootstrap != LOCAL:
        missing = () if run_file.evaluation else ("evaluator",)
        for role in (launcher_role(stages), *(stage for stage in stages if stage not in missing)):
            client_config(run_file.kafka, role=role)
    if run_file.redis.url not in (LOCAL, WITHOUT):
        redis_client(run_file.redis)
    weights = run_file.weights
    if weights.token_file is not None:
        run_token(run_file.run.folder, token_file=weights.token_file)
    if "peer" in stages:
        server_context(cert=weights.tls_cert, key=weights.tls_key)
    if weights.tls_ca is not None:
        client_context(ca=weights.tls_ca)


def context_warnings(run_file: RunFile) -> list[str]:
    """What a run can ask for and its model cannot hold; nothing where the model does not say how long its context is.

    Data in: `max_position_embeddings` of the model's config.json.
    """
    context_tokens = _context_tokens(run_file.model.path)
    acted_in = run_file.environment
    asked = {"prompts.max_tokens": run_file.prompts.max_tokens}
    asked |= {} if acted_in is None else {"environment.max_tokens": acted_in.max_tokens}
    asked |= {f"evaluation.{name}.max_tokens": chosen.max_tokens for name, chosen in run_file.evaluation.items()}
    return [
        f"{setting} = {num_tokens} is not below the context of {run_file.model.path}, {context_tokens} tokens: "
        "completions end where prompt and completion fill it (finish reason length)"
        for setting, num_tokens in asked.items()
        if context_tokens is not None and num_tokens >= context_tokens
    ]


def _context_tokens(model: Path) -> int | None:
    try:
        config = orjson.loads((model / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    found = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return found if isinstance(found, int) else None
