"""Credentials that end after a second, who hands them out, and a store that checks them.

The store is moto's server behind a gate that asks for a token which has not ended.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.support.answering_server import Answer, answering, forwarded, refusal
from tests.support.s3_server import KEY_ID, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.answering_server import Asked
    from tests.support.s3_server import S3Server

LIFE_S = 1.0
GRACE_S = 2.0
"""For how long the store takes a token that has ended: requests take time on a busy machine."""

PROVIDER_MODULE = """
import json
from datetime import datetime
from urllib.request import urlopen


def provider():
    with urlopen({url!r} + "/container") as answer:
        given = json.load(answer)
    return {{
        "access_key_id": given["AccessKeyId"],
        "secret_access_key": given["SecretAccessKey"],
        "token": given["Token"],
        "expires_at": datetime.fromisoformat(given["Expiration"]),
    }}
"""
"""The module of a user, which asks the service of containers at a URL."""


@dataclass
class ExpiringStore:
    """A store whose credentials end."""

    server: S3Server
    url: str = ""
    life_s: float = LIFE_S
    """How long credentials last: those that last no second are asked for at each request."""
    handed_out: int = 0
    """How often credentials were asked for."""
    tokens: set[str] = field(default_factory=set)
    """Tokens of the requests that passed."""
    refused: int = 0
    """Requests whose token had ended."""

    @property
    def options(self) -> dict[str, str]:
        """Storage options without credentials."""
        return {"aws_endpoint_url": self.url, "aws_region": "us-east-1", "allow_http": "true"}

    def credentials(self) -> dict[str, str]:
        """Return new ones, by the names of obstore's options."""
        return {
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
            "aws_session_token": self._token(),
        }

    def _token(self) -> str:
        self.handed_out += 1
        return f"until-{time.time() + self.life_s:.3f}"

    def answer(self, asked: Asked) -> Answer:
        """Answer as the service of a container or machine, of security tokens, or as the store."""
        if asked.path.startswith("/latest/api/token"):
            return Answer(200, b"session")
        if asked.path.endswith("/security-credentials/"):
            return Answer(200, b"role")
        if asked.path.endswith(("/security-credentials/role", "/container")):
            return Answer(200, self._as_json(self._token()))
        if "Action=AssumeRoleWithWebIdentity" in asked.path:
            return Answer(200, _as_xml(self._token()))
        token = asked.headers.get("x-amz-security-token", "until-0")
        if float(token.removeprefix("until-")) + GRACE_S < time.time():
            self.refused += 1
            return refusal(400, "ExpiredToken", "The provided token has expired.")
        self.tokens.add(token)
        return forwarded(urlsplit(self.server.url).netloc, asked)

    def _as_json(self, token: str) -> bytes:
        named = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": KEY_ID,
            "SecretAccessKey": SECRET,
            "Token": token,
            "Expiration": _until(token),
            "LastUpdated": _until(token),
        }
        return json.dumps(named).encode()


def _until(token: str) -> str:
    at = datetime.fromtimestamp(float(token.removeprefix("until-")), UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_xml(token: str) -> bytes:
    return (
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
        f"<AccessKeyId>{KEY_ID}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
        f"<SessionToken>{token}</SessionToken><Expiration>{_until(token)}</Expiration>"
        "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    ).encode()


@contextlib.contextmanager
def expiring(server: S3Server) -> Iterator[ExpiringStore]:
    """Serve while the context lasts."""
    store = ExpiringStore(server)
    with answering(store.answer) as url:
        store.url = url
        yield store
