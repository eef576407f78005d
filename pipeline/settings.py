"""Settings that more than one stage needs; a stage's own live beside the class they configure.

Role: the vocabulary of the run file (TOML). `ops.run_file` composes the sections.
Invariants: frozen; an unknown key is an error; numbers carry their unit in the name.
Failure: pydantic raises `ValidationError`, which `ops.run_file` turns into a `SettingsError` with path, value and
what is allowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipeline.secrets import check_no_password, is_secret_name
from schemas.errors import SettingsError
from schemas.validation import MAX_GROUP_SIZE
from topics.catalog import check_run_name

# Settings of the library that have a name of ours: two ways to say one thing could contradict each other.
_OWN_CONFIG = {
    "bootstrap.servers": "kafka.bootstrap",
    "security.protocol": "kafka.security",
    "sasl.mechanism": "kafka.sasl_mechanism",
    "sasl.mechanisms": "kafka.sasl_mechanism",
    "sasl.username": "kafka.user or kafka.credentials_dir",
    "ssl.ca.location": "kafka.ca_file",
}

PositiveInt = Annotated[int, Field(ge=1)]
_ALL_ADDRESSES = ("", "0.0.0.0", "::")  # noqa: S104 - refused as what others are told
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of every section: frozen, and strict about what it is given."""

    # Settings travel to the stages as JSON, which has no infinity. A wrong value may be a secret in the wrong place:
    # `ops.run_file` shows what may be shown.
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Replicated(Section):
    """What every section has whose processes may become more or fewer while the run goes on."""

    replicas: PositiveInt = Field(default=1, description="Processes that `rlweave up` starts.")
    min_replicas: PositiveInt | None = Field(
        default=None, description="Fewest processes the scheduler may leave; absent: as many as replicas."
    )
    max_replicas: PositiveInt | None = Field(
        default=None, description="Most processes at a time, those included that still retire; absent: as replicas."
    )

    @model_validator(mode="after")
    def _limits_hold_replicas(self) -> Self:
        fewest, most = self.replica_limits
        if not fewest <= self.replicas <= most:
            raise ValueError(
                f"replicas = {self.replicas} is not within min_replicas = {fewest} and max_replicas = {most}"
            )
        return self

    @property
    def replica_limits(self) -> tuple[int, int]:
        """Fewest and most processes."""
        fewest = self.replicas if self.min_replicas is None else self.min_replicas
        most = self.replicas if self.max_replicas is None else self.max_replicas
        return fewest, most


class RunSettings(Section):
    """`[run]`: what the run is; every stage reads it."""

    name: str = Field(description="Run name, part of every topic name.")
    dir: Path = Field(default=Path("runs"), description="Parent of the run's folder for checkpoints, weights and logs.")
    seed: int = Field(default=0, ge=0, lt=2**31, description="Base of all seeds.")
    partitions: PositiveInt = Field(default=8, description="Partitions of every data topic; never changes in a run.")
    groups_per_step: PositiveInt = Field(default=8, description="Groups in one optimizer step (B).")
    group_size: int = Field(default=8, ge=1, le=MAX_GROUP_SIZE, description="Samples of one prompt (G).")
    min_group_members: int | None = Field(
        default=None, ge=1, description="Fewest valid members of a group that may be trained; absent: all."
    )
    max_steps: int = Field(
        default=100,
        ge=0,
        description="Optimizer steps after which the run ends; 0: when it has cloned.",
    )
    max_staleness: int = Field(
        default=2, ge=0, description="Most versions between a sample's birth and its training (eta)."
    )
    on_stale: Literal["drop", "wait", "train"] = Field(
        default="drop",
        description="drop: groups over the bound are dropped. wait: no batch is cut that would push a healthy open "
        "group over it. train: no bound.",
    )
    publish_lag_versions: int = Field(
        default=0,
        ge=0,
        description="Versions that pass while one is published (d); lowers the credit. The scheduler measures it, and "
        "what it measures counts when it is more.",
    )
    group_deadline_s: Seconds = Field(
        default=120.0, description="Time after which an open group is closed; stands still while no engine is ready."
    )
    heartbeat_s: Seconds = Field(default=1.0, description="Time between the heartbeats of a stage.")
    stop_grace_s: Seconds = Field(default=30.0, description="Time a stage has for an orderly stop.")
    slots: PositiveInt | None = Field(
        default=None,
        description="Devices, or processes, that rollouts and learner ranks share; absent: they share none.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Prometheus port of each process, or the next one that is free; 0: any free "
        "one; absent: off. Files in run.dir, .prometheus/*.json, tell Prometheus which.",
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address that metrics are served at. Whoever reaches it can read them: there is no password.",
    )

    @field_validator("name")
    @classmethod
    def _name_is_allowed(cls, value: str) -> str:
        try:
            check_run_name(value)
        except SettingsError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        return value

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.dir / self.name

    @property
    def needed_members(self) -> int:
        """Fewest valid members of a group that may be trained."""
        return self.group_size if self.min_group_members is None else self.min_group_members

    @property
    def credit_groups(self) -> int:
        """Most groups open at a time: max(1, eta + 1 - d) * B (promise 7)."""
        return self.credit_at(self.publish_lag_versions)

    def credit_at(self, lag_versions: int) -> int:
        """The same with a measured d; never more than with the one that is set."""
        lag = max(self.publish_lag_versions, lag_versions)
        return max(1, self.max_staleness + 1 - lag) * self.groups_per_step


class KafkaSettings(Section):
    """`[kafka]`: the broker, and how to be let in."""

    bootstrap: str = Field(default="local", description="host:port[,host:port]; 'local': `rlweave services`.")
    replication_factor: PositiveInt = Field(
        default=1, description="Copies of every partition; a write needs the majority of them in sync."
    )
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="Protocol of the listener at bootstrap: with TLS (ssl), with a user (sasl)."
    )
    sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        default="SCRAM-SHA-512", description="How user and password are shown."
    )
    credentials_dir: Path | None = Field(
        default=None, description="Folder with <role>.user and <role>.password of each stage that runs here."
    )
    user: str | None = Field(
        default=None, description="One user for all roles; absent: credentials_dir, or RLWEAVE_KAFKA_USER."
    )
    password_file: Path | None = Field(
        default=None, description="File with the user's password; absent: RLWEAVE_KAFKA_PASSWORD."
    )
    ca_file: Path | None = Field(
        default=None, description="PEM certificates that the brokers' are checked against; absent: the system's."
    )
    config: dict[str, str] = Field(
        default_factory=dict, description="Further librdkafka settings, as they are; no passwords."
    )

    @field_validator("config")
    @classmethod
    def _config_has_no_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if is_secret_name(name):
                raise ValueError(
                    f"{name!r} is a secret: it does not belong into a run file; use kafka.credentials_dir, "
                    "kafka.password_file or RLWEAVE_KAFKA_PASSWORD"
                )
            if name in _OWN_CONFIG:
                raise ValueError(f"{name!r} is not set here; use {_OWN_CONFIG[name]}")
        return value

    @model_validator(mode="after")
    def _login_fits(self) -> Self:
        given = [name for name in ("credentials_dir", "user", "password_file") if getattr(self, name) is not None]
        if given and not self.security.startswith("sasl_"):
            raise ValueError(f"{given[0]} is set, but security = {self.security!r} shows no user; use 'sasl_ssl'")
        if given[:1] == ["credentials_dir"] and len(given) > 1:
            raise ValueError(f"credentials_dir and {given[1]} are both set; one of them says who we are")
        if self.ca_file is not None and not self.security.endswith("ssl"):
            raise ValueError(f"ca_file is set, but security = {self.security!r} uses no TLS; use 'sasl_ssl' or 'ssl'")
        return self


class RedisSettings(Section):
    """`[redis]`: leases, the peer directory and hints."""

    url: str = Field(
        default="local",
        description="redis://[user@]host[:port][/db], rediss:// with TLS; 'local': `rlweave services`; 'none': run "
        "without.",
    )
    password_file: Path | None = Field(
        default=None, description="File with the password; absent: RLWEAVE_REDIS_PASSWORD, or none."
    )
    ca_file: Path | None = Field(
        default=None, description="PEM certificates that a rediss:// server's is checked against; absent: the system's."
    )
    lease_s: Seconds = Field(default=10.0, description="Life of the learner's lease without renewal.")

    @field_validator("url")
    @classmethod
    def _url_has_no_password(cls, value: str) -> str:
        try:
            check_no_password(value)
        except SettingsError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
        return value


class ModelSettings(Section):
    """`[model]`: the policy."""

    path: Path = Field(description="Directory of a transformers causal language model with its tokenizer.")
    device: str = Field(default="cpu", description="torch device.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(default="float32", description="Parameter dtype.")


class WeightsSettings(Section):
    """`[weights]`: how versions travel."""

    chunk_bytes: PositiveInt = Field(default=4 * 1024 * 1024, description="Size of a chunk.")
    store_max_bytes: PositiveInt = Field(default=20 * 1024**3, description="Size bound of a chunk store.")
    wire_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="dtype on the wire; absent: as the learner holds them."
    )
    keep_versions: PositiveInt = Field(
        default=8, description="Newest versions that stay published, together with the deltas and anchor they rest on."
    )
    anchor_every: PositiveInt = Field(
        default=20, description="Every so many versions is a full anchor; 1: no deltas are made."
    )
    max_delta_share: float = Field(
        default=0.5, gt=0, le=1, description="A delta longer than this share of the full state is not sent."
    )
    host: str = Field(default="127.0.0.1", description="Address the peer server binds to.")
    port: int = Field(default=0, ge=0, le=65535, description="Port of the peer server; 0 picks a free one.")
    advertised_url: str | None = Field(
        default=None, description="URL other hosts reach the peer at; absent: http(s)://host:port."
    )
    token_file: Path | None = Field(
        default=None,
        description="File with the token that peers ask for, the same on every host; absent: RLWEAVE_PEER_TOKEN, or "
        "peer-token in the run's folder.",
    )
    tls_cert: Path | None = Field(
        default=None, description="PEM certificate chain of the peer server; with it peers are asked over https."
    )
    tls_key: Path | None = Field(default=None, description="PEM key of tls_cert.")
    tls_ca: Path | None = Field(
        default=None, description="PEM certificates that other peers are checked against; absent: the system's."
    )
    domain: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="Label of this host's place in the network; hosts of one domain share fast links, and one copy "
        "of a version crosses between domains.",
    )
    max_uploads: PositiveInt = Field(default=32, description="Chunks the peer server sends at a time.")
    upload_bytes_s: dict[str, float] = Field(
        default_factory=dict, description="Most bytes per second the peer server sends, by traffic class."
    )
    max_peers: PositiveInt = Field(default=32, description="Peers a fetch follows at a time, besides the seeds.")
    prefetch: bool = Field(
        default=True, description="Hosts other than the learner's fetch chunks of a version that is still being staged."
    )
    fetch_deadline_s: Seconds = Field(default=60.0, description="Longest time to fetch one version.")
    parallel_fetches: PositiveInt = Field(default=16, description="Chunks fetched at a time.")

    @model_validator(mode="after")
    def _others_can_come(self) -> Self:
        if self.advertised_url is None and self.host in _ALL_ADDRESSES:
            raise ValueError(
                f"host = {self.host!r} is every address of this machine, which others cannot ask: set advertised_url, "
                "or host to the one address they reach"
            )
        if self.advertised_url is not None and self.port == 0:
            raise ValueError("advertised_url needs a port that stays: set port to the one it leads to")
        return self
