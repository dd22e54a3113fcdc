"""The settings of a boot as one frozen class: fields, bounds, defaults and their meaning.

Imports leaves only. `app.settings.load_settings` fills it; constructing it reads nothing.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app import config
from app.config import GradientCheckpointingT, ModelRequest
from app.plan import DownloadT, Plan, VerifyT
from app.profiles import PROFILES, Profile
from app.redaction import redacted
from app.settings_agreement import nothing_to_train, revision_of_local, stops_early
from app.settings_deadlines import DeadlineSettings
from app.settings_errors import Problem
from app.settings_names import PREFIX
from app.settings_rules import (
    Rule,
    file_name,
    file_path,
    folder_path,
    fraction,
    git_revision,
    header_word,
    job_target,
    model_name,
    one_of,
    truth,
    whole,
    word_or_truth,
)
from app.settings_secrets import TOKEN
from app.stages import STAGES

LogFormatT = Literal["text", "json"]
Truth = Annotated[bool, truth()]

REPORT_DIR = Path("reports")
# Type of the one pydantic error that is about several fields; its context holds the problems.
DISAGREE = "settings_disagree"


class BootSettings(DeadlineSettings):
    """What a boot was asked for. The fields that describe the model are named as in the origin."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, hide_input_in_errors=True, validate_by_name=True
    )

    hardware: Annotated[str, one_of(tuple(PROFILES))] = Field(
        description="Class of hardware to prove; an image knows its own, and takes cpu (a rehearsal"
        " without a GPU) besides."
    )
    base_model_id: Annotated[str | None, model_name()] = Field(
        None,
        description=f"Model to boot. By default {config.BASE_MODEL_ID}, and a tiny rehearsal model"
        " on cpu.",
    )
    revision: Annotated[str | None, git_revision()] = Field(
        None, description="Revision of the model on the hub. By default the newest one."
    )
    download: Annotated[DownloadT, one_of(get_args(DownloadT))] = Field(
        "if-missing", description="Whether model files may be fetched from the hub."
    )
    verify: Annotated[VerifyT, one_of(get_args(VerifyT))] = Field(
        "size",
        description="How files in the hub's cache are compared with what the hub has named them by;"
        " sha256 reads all of them.",
    )
    allow_pickle: Truth = Field(
        False,  # noqa: FBT003 - a default, not an argument
        description="Whether weights may be pickles (pytorch_model.bin) where there are no"
        " safetensors.",
    )
    # Below 32 tokens no turn of a chat fits with its template; 2**20 is the longest context that
    # any model family trains with, and more is a slip of units.
    max_seq_length: Annotated[int, whole(32, 2**20)] = Field(
        config.MAX_SEQ_LENGTH, description="Longest sequence, in tokens."
    )
    load_in_4bit: Truth = Field(
        True,  # noqa: FBT003 - a default, not an argument
        description="Whether the language model's projections are loaded in 4-bit (NF4).",
    )
    # Half of Gemma 3n's hidden size of 2048: above, an adapter has no fewer weights than its layer.
    lora_r: Annotated[int, whole(1, 1024)] = Field(
        config.LORA_R, description="Rank of the LoRA adapter."
    )
    # With rank 1 the adapter is scaled by alpha itself, and float16 ends at 65504.
    lora_alpha: Annotated[int, whole(1, 65504)] = Field(
        config.LORA_ALPHA, description="LoRA alpha: the adapter's output is scaled by alpha / rank."
    )
    lora_dropout: Annotated[float, fraction()] = Field(
        config.LORA_DROPOUT, description="Share of the adapter's inputs dropped in training."
    )
    # numpy takes no other seeds.
    lora_random_state: Annotated[int, whole(0, 2**32 - 1)] = Field(
        config.LORA_RANDOM_STATE, description="Seed of the adapter and of the numeric stage."
    )
    finetune_vision_layers: Truth = Field(
        config.FINETUNE_VISION_LAYERS, description="Whether the vision tower gets an adapter."
    )
    finetune_language_layers: Truth = Field(
        config.FINETUNE_LANGUAGE_LAYERS, description="Whether the language model gets an adapter."
    )
    finetune_attention_modules: Truth = Field(
        config.FINETUNE_ATTENTION_MODULES, description="Whether attention projections get one."
    )
    finetune_mlp_modules: Truth = Field(
        config.FINETUNE_MLP_MODULES, description="Whether MLP projections get one."
    )
    use_gradient_checkpointing: Annotated[GradientCheckpointingT, word_or_truth("unsloth")] = Field(
        "unsloth", description="Recompute activations to save memory; unsloth also offloads them."
    )
    # Three show a falling loss; beyond a thousand it is training, which is the job's business.
    steps: Annotated[int, whole(1, 1000)] = Field(
        3, description="Training steps of the numeric stage, on one batch."
    )
    stop_after: Annotated[str | None, one_of(STAGES)] = Field(
        None, description="Stage to end the boot after, successfully. By default it runs them all."
    )
    job: Annotated[str | None, job_target()] = Field(
        None,
        description="Function that is called with the guarded model, tokenizer and report after a"
        " pass. By default none.",
    )
    report_dir: Annotated[Path, folder_path()] = Field(
        REPORT_DIR,
        description="Folder of the report, made if missing; relative to the working folder.",
    )
    termination_log: Annotated[Path | None, file_path()] = Field(
        None,
        description="File for the verdict in one line of at most 900 bytes. By default"
        " /dev/termination-log where it is there.",
    )
    metrics_file: Annotated[Path | None, file_path()] = Field(
        None,
        description="File for metrics in Prometheus' text format; node_exporter reads only names"
        " that end in .prom. By default none.",
    )
    log_format: Annotated[LogFormatT, one_of(get_args(LogFormatT))] = Field(
        "text", description="Form of the log on stderr, for people or for machines."
    )
    run_id: Annotated[str | None, file_name()] = Field(
        None, description="Name of this run in the report. By default the scheduler's."
    )
    # A scheduler that restarts a run every second for a week makes fewer than a million attempts.
    attempt: Annotated[int | None, whole(1, 999_999)] = Field(
        None, description="Which attempt of the run this is. By default the scheduler's count."
    )
    hf_token: Annotated[SecretStr | None, header_word()] = Field(
        None,
        validation_alias=TOKEN,
        description="Token for the hub, also as file /run/secrets/hf_token. Never shown.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> BootSettings:
        if problems := self._disagreements():
            text = "; ".join(str(problem) for problem in problems)
            raise PydanticCustomError(DISAGREE, "{text}", {"text": text, "problems": problems})
        return self

    def _disagreements(self) -> list[Problem]:
        pairs = (
            ("finetune_language_layers", "finetune_vision_layers"),
            ("finetune_attention_modules", "finetune_mlp_modules"),
        )
        problems = []
        for one, other in pairs:
            either = getattr(self, one) or getattr(self, other)
            problems += nothing_to_train(one, other, either=either)
        problems += revision_of_local(self.revision, self.base_model_id)
        if self.job is not None:
            problems += stops_early(self.stop_after, "where BOOT_JOB is set")
        return problems

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the constructor is given: `load_settings` reads the environment it is given."""
        return (init_settings,)

    @property
    def profile(self) -> Profile:
        """The profile that `hardware` names."""
        return PROFILES[self.hardware]

    def plan(self) -> Plan:
        """What this boot sets out to do; the model is still unresolved."""
        asked: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(ModelRequest)}
        asked["base_model_id"] = self.base_model_id or self.profile.default_model
        return Plan(
            profile=self.profile,
            request=ModelRequest(**asked),
            report_dir=self.report_dir,
            revision=self.revision,
            download=self.download,
            verify=self.verify,
            allow_pickle=self.allow_pickle,
            steps=self.steps,
            job=self.job,
        )

    def public(self) -> dict[str, str | int | float | bool | None]:
        """The settings for the report: those in `PUBLIC`, and whether there is a token."""
        token = [self.hf_token.get_secret_value()] if self.hf_token else []
        values = {field: getattr(self, field) for field in PUBLIC}
        return {
            field: redacted(str(value), token) if isinstance(value, str | Path) else value
            for field, value in values.items()
        } | {"hf_token": "set" if token else "unset"}


# Allow-list of the report: a new field stays out of it until it is named here.
PUBLIC: tuple[str, ...] = (
    *(one.name for one in fields(ModelRequest)),
    *("hardware", "revision", "download", "verify", "allow_pickle", "steps", "stop_after"),
    *("report_dir", "log_format", "run_id", "attempt", "job", "termination_log", "metrics_file"),
    *DeadlineSettings.model_fields,
)


def variable_of(field: str) -> str:
    """The environment variable of a field."""
    alias = BootSettings.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else PREFIX + field.upper()


def rule_of(field: str) -> Rule:
    """The rule that a field follows."""
    metadata = BootSettings.model_fields[field].metadata
    return next(rule for rule in metadata if isinstance(rule, Rule))
