"""The building blocks of the spec file: a strict section, and a component chosen by name."""

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Section(BaseModel):
    """A part of the spec file: frozen, unknown fields refused, both spellings accepted."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=_kebab, validate_by_name=True, validate_by_alias=True
    )


class Component(Section):
    """The name of a replaceable part and its options; a bare text is the name alone."""

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, object]:
        return {name.replace("-", "_"): value for name, value in (self.model_extra or {}).items()}


def list_faults(error: ValidationError) -> str:
    """Returns every fault on a line of its own: where it is, and what is wrong."""
    return "\n".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
