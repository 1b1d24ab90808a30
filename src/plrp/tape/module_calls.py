"""Calls of whole modules: of classes that a user's rule is for, and of TorchScript's."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from plrp.errors import TraceError

from .operations import Family, Operation
from .values import Call, Value, carries, gathered

if TYPE_CHECKING:
    from .recorder import Recorder


class ModuleCalls:
    """Sees the calls of modules while a recorder is at work: of classes with a rule, and of TorchScript's.

    It uses torch's hooks for all modules. They act only for the thread that records, and are set only where one of
    these modules may be called: nothing is attached to the model.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = weakref.ref(recorder)
        self._handles: list[Any] = []
        self._thread = 0
        self._depth = 0  # a recorder enters itself again for functions that are written out in steps
        self._writing = False
        modules = recorder.model.modules() if isinstance(recorder.model, nn.Module) else ()
        self.scripted = any(isinstance(module, torch.jit.ScriptModule) for module in modules)
        self.inside: nn.Module | None = None  # a module whose call is one entry of the tape

    def watch(self) -> None:
        """Begin."""
        self._depth += 1
        if self._depth > 1:
            return
        recorder = self._recorder()
        assert recorder is not None
        self._thread, self.inside = threading.get_ident(), None
        if self.scripted or recorder.rules.modules:
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, with_kwargs=True, always_call=True),
            ]

    def unwatch(self) -> None:
        """End."""
        self._depth -= 1
        if self._depth:
            return
        for handle in self._handles:
            handle.remove()
        self._handles, self.inside = [], None

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        recorder = self._recorder()
        if recorder is None or threading.get_ident() != self._thread or self.inside is not None:
            return
        if recorder.rules.of_module(module) is not None:
            self.inside = module
        elif isinstance(module, torch.jit.ScriptModule) and _values(recorder, args):
            error = TraceError(
                f"'{recorder.names.path_of(module)}' is a TorchScript module, which hides its operations; give the "
                "Python module it was made from, or a rule for the whole of it: "
                "`rules={torch.jit.ScriptModule: rule}`."
            )
            recorder.refuse(error, type(module).__name__)

    def _after(self, module: nn.Module, args: tuple[Any, ...], *more: Any) -> None:
        recorder = self._recorder()
        elsewhere = threading.get_ident() != self._thread or self.inside is not module or self._writing
        if recorder is None or elsewhere:
            return
        try:
            self._writing = True
            operation = recorder.rules.of_module(module)
            if operation is not None and len(more) == 2:  # (keywords, result); where the module failed there is neither
                with torch._C.DisableTorchFunction():
                    _write(recorder, module, operation, args, *more)
        finally:
            self.inside, self._writing = None, False


def _values(recorder: Recorder, structure: Any) -> list[Value]:
    """The values in nested arguments, each once."""
    with torch._C.DisableTorchFunction():
        values = (recorder.value_of(tensor) for tensor in gathered(structure))
        return list(dict.fromkeys(value for value in values if value is not None))


def _write(recorder: Recorder, module: nn.Module, operation: Operation, args: Any, kwargs: Any, result: Any) -> None:
    """Write the call of a module with a rule of its own as one entry."""
    values, outputs = _values(recorder, (args, kwargs)), [t for t in gathered(result) if carries(t)]
    if not values or not outputs:
        return
    if operation.family is Family.CONSTANT:
        recorder.live.note(outputs)
        recorder.live.declare(outputs)
        return
    op = recorder.write(Call(type(module), operation, args, kwargs, gathered(args, kwargs), values), outputs)
    path = recorder.names.path_of(module)
    if op is not None and path and path not in recorder.rules.names:
        op.name = path
