import grpc


class VizierError(Exception):
    """A call that fails, with a status code that Vizier's clients expect.

    Attributes:
        code: of gRPC.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def not_found(what: str) -> VizierError:
    """There is no such study, trial or operation."""
    return VizierError(grpc.StatusCode.NOT_FOUND, f'there is no {what}')


def immutable(what: str) -> VizierError:
    """A study or a trial cannot change in its state."""
    return VizierError(grpc.StatusCode.FAILED_PRECONDITION, what)


def invalid(what: str) -> VizierError:
    """The request cannot be executed in any state of the study."""
    return VizierError(grpc.StatusCode.INVALID_ARGUMENT, what)
