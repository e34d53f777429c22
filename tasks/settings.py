"""What has to be known to use a trained model, in `bert_task.json` beside its weights."""

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar, Self

SETTINGS_FILE = "bert_task.json"


class TaskSettings:
    """For frozen dataclasses of plain values: written by the script that trains, read by whoever uses the model."""

    script: ClassVar[str]  # that trains such models

    def to_json(self) -> str:
        values = {"script": self.script} | dataclasses.asdict(self)
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    def deciding(self) -> dict[str, Any]:
        """What a run cannot change when it is continued, by the names of flags."""
        return dataclasses.asdict(self)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Reads the settings of an output directory."""
        path = Path(directory) / SETTINGS_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            script = values.pop("script")
            if script != cls.script:
                raise ValueError(f"it is the model of a {str(script)[:60]}, not of a {cls.script}")
            return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
        except FileNotFoundError:
            raise FileNotFoundError(
                f"There is no {path}: {directory} is not the --output_dir of a {cls.script} that has trained."
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be used: {error}.") from error
