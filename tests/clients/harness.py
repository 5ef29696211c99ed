"""Checks of a client: one line each, and the exit status says whether all of them held."""

import sys
import traceback

checks = []


def check(function):
    checks.append(function)
    return function


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} should have been raised")


def refusal(status):
    """The body of an upstream's error."""
    return '{ "error": {"message":"no: %s", "type":"t","param":null,"code":"c%s"}}\n' % (status, status)


def run():
    failed = 0
    for function in checks:
        name = function.__name__.replace("_", " ")
        try:
            function()
            print(f"  ok      {name}", flush=True)
        except Exception:
            failed += 1
            print(f"  FAILED  {name}", flush=True)
            traceback.print_exc()
    sys.exit(1 if failed else 0)
