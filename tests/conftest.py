import os

import pytest
from hypothesis import settings

from quantkit import _kernels

# Child processes must find the quantkit that is tested, not a source folder they happen to be started in.
os.environ["PYTHONSAFEPATH"] = "1"

# A busy machine is no fault of the code.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")


@pytest.fixture(params=_kernels.isas())
def isa(request):
    """Run the test once for each instruction set of this machine, within one process."""
    before = _kernels.use_isa(request.param)
    yield request.param
    _kernels.use_isa(before)
