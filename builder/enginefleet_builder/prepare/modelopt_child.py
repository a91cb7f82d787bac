"""The child's side of modelopt.py: `python -m enginefleet_builder.prepare.modelopt_child`. A process of its own, because ModelOpt patches ONNX
Runtime for the whole process, and gives back its memory when it ends.

quantize {precision, method, model, target, rest, exclude}; cast {precision, model, target, data_max}; rest {model, target}. While it works on
one, the child asks for samples: an answer {"want": "first" | "next" | "rewind"} is met with a frame {"end": bool} and the arrays.
"""

from __future__ import annotations

import os

# before anything imports it: bars of libraries would fill the log
os.environ["TQDM_DISABLE"] = "1"

import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from enginefleet_api.errors import EngineFleetError

from ..backends.frames import ChildEnd
from ..gate.arrays import Array
from .notorch import ModelOpt

Ask: TypeAlias = Callable[[dict[str, Any]], tuple[dict[str, Any], dict[str, Array]]]


def main() -> None:
    end = ChildEnd()

    def ask(header: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        end.send(header)
        return end.receive()

    modelopt: ModelOpt | None = None
    while True:
        try:
            header, _ = end.receive()
        except EOFError:
            return
        reply: dict[str, Any] = {}
        try:
            modelopt = modelopt or ModelOpt()
            {"quantize": _quantize, "cast": _cast, "rest": _rest}[header["do"]](modelopt, header, ask)
        except EOFError:
            return
        except EngineFleetError as error:
            reply = {"fault": {"reason": error.reason, "message": error.message, "hint": error.hint}}
        # whatever it is, the parent classifies its text
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        end.send(reply)


class _Reader:
    """What ModelOpt reads: it rewinds, and looks at the first batch without taking it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def get_first(self) -> Mapping[str, Array]:
        return self._ask({"want": "first"})[1]

    def get_next(self) -> Mapping[str, Array] | None:
        header, arrays = self._ask({"want": "next"})
        return None if header["end"] else arrays

    def rewind(self) -> None:
        self._ask({"want": "rewind"})


def _quantize(modelopt: ModelOpt, header: Mapping[str, Any], ask: Ask) -> None:
    modelopt.quantize(
        header["model"],
        quantize_mode=header["precision"],
        calibration_method=header["method"],
        calibration_data_reader=_Reader(ask),
        calibration_eps=["cpu"],
        high_precision_dtype=header["rest"],
        # patterns to ModelOpt, exact names here
        nodes_to_exclude=list(header["exclude"]),
        output_path=header["target"],
        log_level="WARNING",
    )


def _cast(modelopt: ModelOpt, header: Mapping[str, Any], ask: Ask) -> None:
    with tempfile.TemporaryDirectory(prefix="ranges-") as folder:
        # AutoCast takes files only; without data it would run on shapes in which every open dimension is 1, and keep those
        count = 0
        while not (answer := ask({"want": "next"}))[0]["end"]:
            np.savez(Path(folder) / f"{count:04}.npz", **cast("dict[str, Any]", answer[1]))
            count += 1
        made = modelopt.cast(
            header["model"], low_precision_type=header["precision"], keep_io_types=True, calibration_data=folder, data_max=header["dataMax"]
        )
    _save(made, header["target"])


def _rest(modelopt: ModelOpt, header: Mapping[str, Any], ask: Ask) -> None:  # noqa: ARG001
    import onnx

    _save(modelopt.rest(onnx.load(header["model"]), low_precision_type="fp16", keep_io_types=True), header["target"])


def _save(model: Any, target: str) -> None:
    import onnx

    onnx.save(model, target)


if __name__ == "__main__":
    main()
