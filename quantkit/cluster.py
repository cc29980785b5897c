"""A map over the workers of a Dask cluster, for tasks that leave their results where all can reach them."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import uuid
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, TypeVar

from quantkit.cpu import num_threads
from quantkit.errors import ClusterError, InvalidArgument, MissingDependency, QuantkitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

R = TypeVar("R")
_JOIN = 60.0  # seconds that the first worker may take to appear
_RETRIES = 2


def cluster_map(
    fn: Callable[..., R], items: Iterable[Any], scheduler: Any, *, retries: int = _RETRIES, shared: Any = None
) -> Iterator[R]:
    """Call `fn` on every item on the workers of a cluster, and yield the results as they come.

    A task whose worker dies is done again by another one; one that fails is tried `retries` times more. So a task must
    leave the same behind however often it is done.

    Parameters
    ----------
    fn : callable
        Pickled, as are items and results: they should be small.
    items : iterable
        Taken on the caller's thread, a few more than there are threads on the cluster.
    scheduler : str or distributed.Client
        The address of a Dask scheduler (``tcp://host:8786``), or "local": processes on this machine, one for each
        usable CPU.
    retries : int, default 2
    shared : optional
        Sent to each worker once, and given to `fn` behind the item; it may be large.

    Raises
    ------
    MissingDependency
        Without Dask, naming what to install.
    InvalidArgument
        For a scheduler that is none.
    ClusterError
        When it cannot be reached, has no workers, or a task killed every worker that it came to.
    Exception
        What `fn` raised in the last try. Tasks that have not begun never do then.
    """
    with connected(scheduler) as client:
        more = () if shared is None else (client.scatter(shared, broadcast=True, hash=False),)
        yield from _run(client, fn, iter(items), more, retries)


def _run(client: Any, fn: Callable[..., R], items: Iterator[Any], more: tuple[Any, ...], retries: int) -> Iterator[R]:
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    run, numbers = uuid.uuid4().hex[:12], itertools.count()
    done: Any = as_completed(loop=client.loop)
    waiting: set[Any] = set()

    def fill() -> None:
        # More than there are threads, so that none waits for the caller; asked anew, because workers come and go.
        ahead = 2 * max(1, sum(client.nthreads().values())) + 2
        for item in itertools.islice(items, max(0, ahead - len(waiting))):
            key = f"quantkit-{run}-{next(numbers)}"
            future = client.submit(fn, item, *more, key=key, retries=retries, pure=False)
            waiting.add(future)
            done.add(future)

    try:
        fill()
        while waiting:
            future = next(done)
            waiting.discard(future)
            try:
                result = future.result()
            except KilledWorker as error:
                raise ClusterError(f"{_name(client)}: {' '.join(str(error).split())}") from error
            except QuantkitError:
                raise
            except (ImportError, AttributeError) as error:
                raise ClusterError(f"{_name(client)}: a worker cannot run the task: {error}") from error
            future.release()
            yield result
            fill()
    finally:
        for future in waiting:
            future.cancel()


def _name(client: Any) -> str:
    scheduler = getattr(client, "scheduler", None)
    return str(getattr(scheduler, "address", "the cluster"))


@contextmanager
def connected(scheduler: Any) -> Iterator[Any]:
    """Give the client of a cluster, named as `cluster_map` takes it; one that is given stays open."""
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        raise MissingDependency(
            f"scheduler={scheduler!r}: this needs Dask, which is not installed: pip install quantkit[cluster]"
        ) from None
    if isinstance(scheduler, Client):
        yield scheduler
    elif scheduler == "local":
        with ExitStack() as stack:
            # What distributed logs of tasks is raised here as well, and is no news where the run was told to end.
            options: dict[str, Any] = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
            with _signals_held():
                try:
                    cluster = LocalCluster(n_workers=num_threads(), threads_per_worker=1, **options)
                    client = stack.enter_context(Client(stack.enter_context(cluster)))
                except (OSError, RuntimeError) as error:
                    raise ClusterError(f"scheduler local: cannot be started: {' '.join(str(error).split())}") from error
            yield client
    elif isinstance(scheduler, str) and scheduler:
        try:
            client = Client(scheduler, timeout=10)
        except (OSError, ValueError, TypeError) as error:
            raise ClusterError(f"scheduler {scheduler}: cannot be reached: {' '.join(str(error).split())}") from error
        with client:
            try:
                client.wait_for_workers(1, timeout=_JOIN)
            except TimeoutError:
                raise ClusterError(f"scheduler {scheduler}: no worker appeared within {_JOIN:.0f} s") from None
            yield client
    else:
        raise InvalidArgument(f"scheduler must be an address (tcp://host:8786), 'local' or a Client, got {scheduler!r}")


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let what would end this process wait until the block ends, and have what is started in it not see Ctrl-C.

    A terminal sends that to the workers as well. Those that start then, and a cluster that is half there, cannot be
    ended in order.
    """
    if threading.current_thread() is not threading.main_thread():  # no signal interrupts another one
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    resource_tracker.ensure_running()  # which would unblock it
    for number in handlers:
        signal.signal(number, lambda which, frame: came.append(which))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
