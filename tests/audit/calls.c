/* Preloaded into every process that the suite starts (conftest.py): whoever sends to another machine, or asks a name
 * server for one, is written down, whatever it is written in, libzmq and Node too. Programs without a C library that is
 * shared, and calls past it, are not heard. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void record(const char *call, const char *host)
{
	int kept = errno;
	const char *path = getenv("CAESURA_TEST_CONNECTIONS");
	int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
	if (file >= 0) {
		dprintf(file, "%s %s by %s, process %d\n", call, host, program_invocation_name, getpid());
		close(file);
	}
	errno = kept;
}

static void heard(const char *call, const struct sockaddr *address)
{
	char host[INET6_ADDRSTRLEN] = "";
	if (address && address->sa_family == AF_INET) {
		const struct in_addr *four = &((const struct sockaddr_in *)address)->sin_addr;
		if (ntohl(four->s_addr) >> 24 != IN_LOOPBACKNET && four->s_addr != INADDR_ANY)
			inet_ntop(AF_INET, four, host, sizeof host);
	} else if (address && address->sa_family == AF_INET6) {
		const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
		int mapped = IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == IN_LOOPBACKNET;
		if (!mapped && !IN6_IS_ADDR_LOOPBACK(six) && !IN6_IS_ADDR_UNSPECIFIED(six))
			inet_ntop(AF_INET6, six, host, sizeof host);
	}
	if (*host)
		record(call, host);
}

static int own(const char *host)
{
	char name[256] = "";
	struct in_addr four;
	struct in6_addr six;
	gethostname(name, sizeof name - 1);
	/* Numbers ask nobody; who sends to them is heard then. */
	return !*host || !strcmp(host, "localhost") || !strcmp(host, name) || inet_pton(AF_INET, host, &four) == 1 ||
	       inet_pton(AF_INET6, host, &six) == 1;
}

#define THE_REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int connect(int socket, const struct sockaddr *address, socklen_t size)
{
	heard("connect", address);
	return THE_REAL(connect)(socket, address, size);
}

ssize_t sendto(int socket, const void *data, size_t length, int flags, const struct sockaddr *address, socklen_t size)
{
	heard("sendto", address);
	return THE_REAL(sendto)(socket, data, length, flags, address, size);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
	heard("sendmsg", message->msg_name);
	return THE_REAL(sendmsg)(socket, message, flags);
}

int sendmmsg(int socket, struct mmsghdr *messages, unsigned count, int flags)
{
	for (unsigned i = 0; i < count; i++)
		heard("sendmmsg", messages[i].msg_hdr.msg_name);
	return THE_REAL(sendmmsg)(socket, messages, count, flags);
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
	if (host && !own(host))
		record("getaddrinfo", host);
	return THE_REAL(getaddrinfo)(host, service, hints, found);
}
