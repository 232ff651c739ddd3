"""The rules, one by one: scopes of addresses, names of hosts, origins, and rates."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from conv_advisor.app.guard.policy import scope_needed
from conv_advisor.app.guard.rates import Rates, network_of
from conv_advisor.app.hosts import ANY, LOOPBACK, Hosts, foreign_origin, is_loopback
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.caller import Scope

OPEN = None
READ, MEASURE, ADMINISTER = Scope
NEEDED = {
    ("GET", "/livez"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/v2/health/live"): OPEN,
    ("GET", "/v2/health/ready"): OPEN,
    ("GET", "/v2/models/conv/ready"): OPEN,
    ("GET", "/v2/models/conv/versions/1/ready"): OPEN,
    ("GET", "/sign-in"): OPEN,
    ("POST", "/sign-in"): OPEN,
    ("POST", "/sign-out"): OPEN,
    ("GET", "/static/page.css"): OPEN,
    ("GET", "/problems"): OPEN,
    ("GET", "/problems/{name}"): OPEN,
    ("GET", "/problemsx"): READ,
    ("GET", "/"): READ,
    ("GET", "/docs"): READ,
    ("GET", "/openapi.json"): READ,
    ("GET", "/metrics"): READ,
    ("GET", "/v1/advice"): READ,
    ("HEAD", "/v1/advice"): READ,
    ("POST", "/v1/advice"): READ,
    ("GET", "/v1/plans"): READ,
    ("POST", "/v1/plans"): READ,
    ("POST", "/plan"): READ,
    ("GET", "/v1/jobs/abc"): READ,
    ("GET", "/measurements/abc"): READ,
    ("POST", "/v1/convolutions"): MEASURE,
    ("POST", "/v2/models/conv/infer"): MEASURE,
    ("POST", "/v2/models/conv/versions/1/infer"): MEASURE,
    ("POST", "/measurements"): MEASURE,
    ("POST", "/measurements/abc/cancel"): MEASURE,
    ("POST", "/v1/jobs"): MEASURE,
    ("POST", "/v1/models"): ADMINISTER,
    ("PUT", "/v1/models/active"): ADMINISTER,
    ("DELETE", "/v1/jobs/abc"): ADMINISTER,
    ("POST", "/models/retrain"): ADMINISTER,
    ("POST", "/models/activate"): ADMINISTER,
    ("POST", "/jobs/abc/cancel"): ADMINISTER,
    ("POST", "/v1/convolutions/"): ADMINISTER,
    ("POST", "/v1/advice/x"): ADMINISTER,
    ("PATCH", "/whatever/comes"): ADMINISTER,
    ("BREW", "/livez2"): ADMINISTER,
    ("GET", "/staticx"): READ,
    ("GET", "/livez/"): READ,
}


@pytest.mark.parametrize(("asked", "needed"), NEEDED.items(), ids=map(" ".join, NEEDED))
def test_an_address_needs_its_scope(asked: tuple[str, str], needed: Scope | None) -> None:
    assert scope_needed(*asked) is needed


def test_no_route_is_open_that_is_not_meant_to_be(tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path))
    routes = [each for each in iter_route_contexts(app.routes) if not isinstance(each.original_route, Mount)]
    asked = {(method, str(each.path)) for each in routes for method in each.methods or ()}
    assert len(asked) > 30
    is_open = {(method, path) for method, path in asked if scope_needed(method, path) is None and method != "HEAD"}
    assert is_open == {asked for asked, needed in NEEDED.items() if needed is OPEN} - {
        ("GET", "/static/page.css"),
        ("GET", "/v2/models/conv/ready"),  # one value of a template that is not open
        ("GET", "/v2/models/conv/versions/1/ready"),
    }
    for method, path in asked:
        if method not in ("GET", "HEAD") and path not in ("/sign-in", "/sign-out", "/v1/advice", "/v1/plans", "/plan"):
            assert scope_needed(method, path) in (MEASURE, ADMINISTER), (method, path)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)),  # noqa: S104 - asked about
    ],
)
def test_loopback_is_what_nobody_else_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_host_is_allowed_by_its_name_whatever_its_port() -> None:
    hosts = Hosts((*LOOPBACK, "*.example.org"))
    for host in (b"localhost", b"LOCALHOST:1", b"127.0.0.1:65535", b"[::1]", b"[::1]:80", b"a.example.org:80"):
        assert hosts.allow(host), host
        assert hosts.allow(host), host
    for host in (b"", b"evil.example", b"localhost.evil.example", b"example.org", b"evilexample.org", b"127.0.0.1:x"):
        assert not hosts.allow(host), host
    assert not hosts.allow(b"localhost@evil.example")
    assert not hosts.allow(b"\xff\xfe")
    assert Hosts((ANY,)).allow(b"evil.example")
    assert Hosts((*LOOPBACK, "127.0.0.1")).names == LOOPBACK


def test_hosts_that_are_remembered_are_bounded() -> None:
    hosts = Hosts(("localhost",))
    assert all(hosts.allow(b"localhost:%d" % port) for port in range(5000))
    assert len(hosts._seen) <= 256


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({}, True),
        ({b"origin": b"http://localhost:8000", b"host": b"localhost:8000"}, True),
        ({b"origin": b"https://localhost", b"host": b"localhost"}, True),
        ({b"origin": b"http://localhost:8001", b"host": b"localhost:8000"}, False),
        ({b"origin": b"http://evil.example", b"host": b"localhost"}, False),
        ({b"origin": b"null", b"host": b"localhost"}, False),
        ({b"origin": b"null"}, False),
        ({b"origin": b""}, False),
        ({b"origin": b"http://[", b"host": b"localhost"}, False),
        ({b"sec-fetch-site": b"same-origin"}, True),
        ({b"sec-fetch-site": b"none"}, True),
        ({b"sec-fetch-site": b"same-site"}, False),
        ({b"sec-fetch-site": b"cross-site"}, False),
    ],
)
def test_a_browser_says_where_a_request_comes_from(headers: dict[bytes, bytes], is_own: bool) -> None:
    assert (foreign_origin(headers) is None) is is_own


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    clock = Clock()
    rates = Rates(per_s=2.0, burst=3, clock=clock)
    assert [rates.take("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert rates.take("a") == pytest.approx(0.5)
    assert rates.take("b") == 0.0, "another caller has a bucket of their own"
    clock.now += 0.5
    assert rates.take("a") == 0.0
    assert rates.take("a") == pytest.approx(0.5)
    clock.now += 3600
    assert [rates.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, pytest.approx(0.5)]


def test_who_is_refused_does_not_wait_longer_for_asking() -> None:
    clock = Clock()
    rates = Rates(per_s=1.0, burst=1, clock=clock)
    rates.take("a")
    assert [rates.take("a") for _ in range(100)] == [pytest.approx(1.0)] * 100


def test_buckets_are_bounded_and_the_longest_unused_goes_first() -> None:
    clock = Clock()
    rates = Rates(per_s=0.001, burst=1, most=100, clock=clock)
    rates.take("early")
    for each in range(100_000):
        rates.take(f"caller {each}")
    assert len(rates) == 100
    assert rates.take("caller 99999") > 0, "the newest is remembered"
    assert rates.take("early") == 0, "the oldest was not"


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 9), "2001:db8:1:2::/64"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("unix", 0), "unix"),
        (None, ""),
    ],
)
def test_an_ipv6_network_is_one_caller(client: tuple[str, int] | None, expected: str) -> None:
    assert network_of(client) == expected
