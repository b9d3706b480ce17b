"""Adam's steps on a tape, which is recorded at the first step and then replayed."""

import pytest

from adam_cases import CASES
from reverie.kernels.tape import Tape


@pytest.mark.parametrize("case", CASES)
def test_replayed_steps_of_adam(case):
    def several(function, times):
        with Tape() as tape:
            function()
        yield
        for _ in range(times - 1):
            tape.replay()
            yield

    case(several)
