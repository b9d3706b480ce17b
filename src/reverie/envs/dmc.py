"""Preparations for the DeepMind Control Suite: a renderer that works without a screen, and a fix for new MuJoCo."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable
from typing import Any

EGL_PLATFORM_DEVICE = 0x313F


def choose_renderer() -> None:
    """Set ``MUJOCO_GL`` where there is no screen and the user has not set it: EGL, else OSMesa, else no renderer.

    MuJoCo's own default is a window toolkit, which fails without a screen. A backend that does not work fails on
    import, even if nothing is ever drawn.
    """
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if "MUJOCO_GL" in os.environ or has_screen or not sys.platform.startswith("linux"):
        return
    if _egl_works():
        os.environ["MUJOCO_GL"] = "egl"
    else:
        os.environ["MUJOCO_GL"] = "osmesa" if ctypes.util.find_library("OSMesa") else "disable"


def _egl_works() -> bool:
    """Return whether EGL can open a display on some device (a GPU, or Mesa's software renderer)."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
        egl.eglGetProcAddress.restype = ctypes.c_void_p
        query = _function(egl, b"eglQueryDevicesEXT", ctypes.c_uint)
        display_of = _function(egl, b"eglGetPlatformDisplayEXT", ctypes.c_void_p)
    except (OSError, AttributeError):
        return False
    devices, count = (ctypes.c_void_p * 16)(), ctypes.c_int()
    if not query(ctypes.c_int(16), devices, ctypes.byref(count)):
        return False
    for device in devices[: count.value]:
        display = display_of(ctypes.c_uint(EGL_PLATFORM_DEVICE), ctypes.c_void_p(device), None)
        if display and egl.eglInitialize(ctypes.c_void_p(display), None, None):
            return True
    return False


def _function(egl: ctypes.CDLL, name: bytes, result: type) -> Callable[..., Any]:
    address = egl.eglGetProcAddress(ctypes.c_char_p(name))
    if not address:
        raise AttributeError(name)
    return ctypes.CFUNCTYPE(result)(address)


def forget_removed_fields() -> None:
    """Remove fields that the installed MuJoCo no longer has from dm_control's list of fields.

    dm_control 1.0.50 reads every field of MuJoCo 3.17's structures by name. MuJoCo 4 has removed some fields of
    flexible bodies, which no task of the suite uses.
    """
    import mujoco  # type: ignore[import-untyped, import-not-found, unused-ignore]  # has no types
    from dm_control.mujoco.wrapper.mjbindings import sizes

    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for name, struct in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
        fields = sizes.array_sizes[name]
        for field in [field for field in fields if not hasattr(struct, field)]:
            del fields[field]
