"""How to reach the API server and who we are there: in-cluster service account or kubeconfig, both read by the `kubernetes` package."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import Configuration


@dataclass(slots=True)
class Access:
    """Opens sessions and gives the current token. A service account's token is read again from its file every minute."""

    configuration: Configuration
    kubeconfig: str | None

    @classmethod
    async def load(cls, kubeconfig: str | None = None) -> Access:
        """The given kubeconfig, else the pod's service account, else $KUBECONFIG or ~/.kube/config."""
        access = cls(Configuration(), kubeconfig)
        await access.reload()
        return access

    async def reload(self) -> None:
        """Read everything again: a rotated CA, a new client certificate, an expired token of a credential plugin."""
        fresh = Configuration()
        if self.kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=fresh)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(config_file=self.kubeconfig, client_configuration=fresh)  # type: ignore[no-untyped-call]
        self.configuration = fresh

    @property
    def server(self) -> str:
        return str(self.configuration.host).rstrip("/")

    def headers(self) -> dict[str, str]:
        hook: Callable[[Configuration], None] | None = self.configuration.refresh_api_key_hook
        if hook is not None:
            hook(self.configuration)
        token = self.configuration.api_key.get("BearerToken")
        return {"Authorization": token} if token else {}

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls(), limit=64),
            headers={"Accept": "application/json", "User-Agent": "enginefleet-operator"},
            proxy=self.configuration.proxy,
        )

    def _tls(self) -> ssl.SSLContext | bool:
        if not self.server.startswith("https"):
            return True
        context = ssl.create_default_context(cafile=self.configuration.ssl_ca_cert)
        if self.configuration.cert_file:
            context.load_cert_chain(self.configuration.cert_file, self.configuration.key_file)
        if not self.configuration.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
