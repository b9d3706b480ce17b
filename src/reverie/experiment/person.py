"""A person who takes over from the policy, as a function in Python: a device's driver, or a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError
from reverie.core.imports import import_object
from reverie.core.protocols import Env
from reverie.core.specs import MASK_KEY
from reverie.core.types import ExecutedActions, State, Step
from reverie.envs.interventions import ExecutedActionReader
from reverie.replay.config import PERSON_OBJECT, PERSON_PAGE

if TYPE_CHECKING:  # it leads to what runs
    from reverie.run.takeovers import ActionChannel

SINGLE_KEYS = {"observation", "image"}
"""Keys of an observation that is a single array."""


class Person:
    """A person who can take over from the policy in environment 0 while it learns.

    .. code-block:: python

        def help(obs, action):
            return pad.read() if pad.is_held() else None  # None: the policy acts

        reverie.train("sac", env="MyEnv-v0", preset="hil", human=reverie.Person(help))
    """

    def __init__(self, choose_action: Callable[[Any, Any], Any]) -> None:
        """``choose_action(obs, action)`` returns the action to take instead of the policy's ``action``, or None.

        Both are in the environment's action space. ``obs`` is what the agent observes: a NumPy array, or, of several,
        a dictionary. If ``choose_action`` has a method ``reset``, it is called at the beginning of each episode; if it
        has ``state_dict`` and ``load_state_dict``, checkpoints contain its state, so that a resumed run is exact.
        """
        if not callable(choose_action):
            raise ConfigError(f"human = {choose_action!r}: expected a function of the observation and the action.")
        self.choose_action = choose_action

    def connect(self, env: Env, stop: Callable[[], bool]) -> None:
        """Read the action space of ``env``."""
        space = env.call("action_space")[0]
        self._codec: ActionCodec = ActionCodec(space)
        self._reader: ExecutedActionReader = ExecutedActionReader(space, [self], keeps_filtered=False)

    def judge(self, step: Step) -> None:
        """Return None: the environment ends its episodes."""

    def choose(self, step: Step, action: Tensor) -> ExecutedActions | None:
        """Return the person's action in environment 0, see ``ActionChannel``; DataError if it is none."""
        if step.is_last[0]:
            return None
        if step.is_first[0] and hasattr(self.choose_action, "reset"):
            self.choose_action.reset()
        arrays = {key: x[0].numpy() for key, x in step.obs.items()}
        obs = next(iter(arrays.values())) if len(arrays) == 1 and arrays.keys() <= SINGLE_KEYS else arrays
        chosen = self.choose_action(obs, self._codec(action[0].numpy()))
        if chosen is None:
            return None
        flat, _ = self._reader({"intervene_action": chosen}, arrays.get(MASK_KEY))
        return ExecutedActions.from_person(action, flat)

    def state_dict(self) -> State:
        """Return the state of ``choose_action``, if it has any."""
        return self.choose_action.state_dict() if hasattr(self.choose_action, "state_dict") else {}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that ``state_dict`` returned."""
        if hasattr(self.choose_action, "load_state_dict"):
            self.choose_action.load_state_dict(state)


def find_person(name: str, human: ActionChannel | None) -> ActionChannel | None:
    """Return ``human``, or the person that the setting ``human.person`` names; None: nobody.

    ConfigError if an earlier process of the run had a person who is an object.
    """
    if human is not None or not name:
        return human
    if name == PERSON_OBJECT:
        raise ConfigError("human: this run had a person that is an object in Python. Pass it again: human=Person(...).")
    if name == PERSON_PAGE:
        raise ConfigError("human = page: reverie.train and reverie train alone open it. Pass a reverie.Person.")
    chosen = import_object(name, error_prefix=f"human.person = '{name}'", base=object)
    return Person(chosen() if isinstance(chosen, type) else chosen)
