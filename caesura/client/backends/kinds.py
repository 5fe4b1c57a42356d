"""The kinds of services, and a backend made from what the user has named. Importing this loads the HTTP library."""

from collections.abc import Callable

from caesura.client.backends import Kind, named
from caesura.client.backends.api import Api
from caesura.client.backends.fim import Fim
from caesura.client.backends.http import Http
from caesura.client.backends.inception import Inception
from caesura.client.backends.jobs import HttpBackend
from caesura.client.backends.llama_server import LlamaServer
from caesura.client.backends.named import NamedService
from caesura.client.backends.vllm import Vllm

APIS: dict[Kind, Callable[[NamedService], Api]] = {
    "llama-server": lambda service: LlamaServer(),
    "vllm": lambda service: Vllm(service.model),
    "fim": lambda service: Fim(service.model, service.format),
    "inception": lambda service: Inception(service.model),
}


def backend(service: NamedService) -> HttpBackend:
    http = Http(service.name, service.url, lambda: named.key(service))
    return HttpBackend(APIS[service.kind](service), http, service.host, metered=not service.near)
