"""LoRA adapters of a simulated endpoint: loaded and unloaded as vLLM does, with its answers."""

from collections.abc import Iterable, Mapping

from extproc.simulator.http.refusals import Refusal


class Adapters:
    """Names and paths of the adapters that are loaded. `models` are names that no adapter may take."""

    def __init__(self, models: Iterable[str], names: Iterable[str] = ()) -> None:
        self._models = frozenset(models)
        self._paths = {name: name for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    @property
    def paths(self) -> Mapping[str, str]:
        return self._paths

    def load(self, name: str, path: str, *, in_place: bool = False) -> str:
        """Loads an adapter; returns vLLM's message or raises `Refusal`."""
        if not name or not path:
            raise Refusal("Both 'lora_name' and 'lora_path' must be provided.", kind="InvalidUserInput")
        if name in self._models:
            message = f"The lora adapter '{name}' conflicts with a served base model."
            raise Refusal(message, kind="InvalidUserInput")
        if name in self._paths and not in_place:
            message = (
                f"The lora adapter '{name}' has already been loaded. "
                "If you want to load the adapter in place, set 'load_inplace' to True."
            )
            raise Refusal(message, kind="InvalidUserInput")
        self._paths[name] = path
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, name: str) -> str:
        """Unloads an adapter; returns vLLM's message or raises `Refusal`. Its requests go on."""
        if not name:
            message = "'lora_name' needs to be provided to unload a LoRA adapter."
            raise Refusal(message, kind="InvalidUserInput")
        if name not in self._paths:
            message = f"The lora adapter '{name}' cannot be found."
            raise Refusal(message, status=404, kind="NotFoundError")
        del self._paths[name]
        return f"Success: LoRA adapter '{name}' removed successfully."
