"""What several tests of this room share."""

import pytest


@pytest.fixture(params=["compiled", "defined"])
def either(request):
    """With kernels, and without."""
    if request.param == "defined":
        request.getfixturevalue("definitions")
