import os

import pytest

from quantkit import _kernels

# Child processes must find the quantkit that is tested, not a source folder they happen to be started in.
os.environ["PYTHONSAFEPATH"] = "1"


@pytest.fixture(params=_kernels.isas())
def isa(request):
    """Run the test once for each instruction set of this machine, within one process."""
    before = _kernels.use_isa(request.param)
    yield request.param
    _kernels.use_isa(before)
