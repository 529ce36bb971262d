//! The sockets of the operator's API, and authentication of its clients.
//!
//! An operator can store chunks and sources in nicfetch, and remove cached data. A port on loopback is
//! open to every user of the machine, so the API is usually served on a unix socket, where the kernel
//! reports the user of the peer. On a port, clients send a token.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use hyper::header::AUTHORIZATION;
use hyper::{Method, Request};
use tokio::net::{TcpListener, UnixListener};

use mirror::{Acceptor, Refusal};
use serving::transport::Stream;

/// A socket of the operator's API.
#[derive(Debug)]
pub struct AdminDoor {
    socket: Socket,
    guard: Guard,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Which clients may use the API.
#[derive(Clone, Debug)]
pub(super) enum Guard {
    /// These users.
    Users(Vec<u32>),
    /// Clients that send the token; `/healthz` and `/readyz` need none.
    Token(AdminToken),
}

/// The token that clients send over a port. Only its hash is in memory.
#[derive(Clone)]
pub struct AdminToken(blake3::Hash);

impl AdminToken {
    /// Returns the token with this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(blake3::hash(text.as_bytes()))
    }

    /// Compares `text` with the token in constant time.
    fn is(&self, text: &str) -> bool {
        self.0 == blake3::hash(text.as_bytes())
    }
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken")
    }
}

/// The client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A process of this user, if the kernel reports it.
    User(Option<u32>),
    /// A client over a port, whose user is unknown.
    Port,
}

impl AdminDoor {
    /// Listens at a socket in the file system, for `users`. Its directory is created if it is missing,
    /// for its owner only; a socket without a listener is replaced.
    ///
    /// # Errors
    /// If the socket cannot be created, or a process listens there.
    pub async fn unix(path: &Path, users: Vec<u32>) -> io::Result<Self> {
        if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
            DirBuilder::new().mode(0o700).create(dir)?;
        }
        rawio::unix_socket::remove_dead(path)?;
        let socket = UnixListener::bind(path)?;
        // Who connects before this is asked for by the kernel's word, too.
        set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Self {
            socket: Socket::Unix(socket),
            guard: Guard::Users(users),
        })
    }

    /// Listens at a port, for clients that send the token.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn tcp(address: SocketAddr, token: AdminToken) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::Tcp(TcpListener::bind(address).await?),
            guard: Guard::Token(token),
        })
    }

    /// Returns where it listens, with the port that the system chose.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn address(&self) -> io::Result<String> {
        Ok(match &self.socket {
            Socket::Tcp(listener) => listener.local_addr()?.to_string(),
            Socket::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or(Path::new(""));
                format!("unix:{}", path.display())
            }
        })
    }

    pub(super) fn guard(&self) -> Guard {
        self.guard.clone()
    }
}

impl Acceptor for AdminDoor {
    type Stream = Box<dyn Stream>;
    type Caller = Caller;

    async fn next(&self) -> io::Result<(Self::Stream, Caller)> {
        match &self.socket {
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok((Box::new(stream), Caller::User(user)))
            }
            Socket::Tcp(listener) => {
                let (stream, _) = listener.next().await?;
                Ok((Box::new(stream), Caller::Port))
            }
        }
    }
}

impl Guard {
    /// Authorizes a request, or returns its refusal.
    pub(super) fn admit<B>(&self, caller: Caller, request: &Request<B>) -> Result<(), Refusal> {
        match (self, caller) {
            (Self::Users(users), Caller::User(Some(user))) if users.contains(&user) => Ok(()),
            (Self::Token(token), _) => {
                let path = request.uri().path();
                let told_all = request.method() == Method::GET;
                if told_all && matches!(path, "/healthz" | "/readyz") {
                    return Ok(());
                }
                let shown = request.headers().get(AUTHORIZATION);
                let shown = shown.and_then(|value| value.to_str().ok());
                let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
                match shown.is_some_and(|shown| token.is(shown)) {
                    true => Ok(()),
                    false => Err(Refusal::no_operator()),
                }
            }
            (Self::Users(_), Caller::User(Some(user))) => Err(Refusal::forbidden(format!(
                "user {user} may not operate nicfetch: only root and the user that it runs as may"
            ))),
            (Self::Users(_), _) => Err(Refusal::forbidden("the user of the client is unknown")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(path: &str, authorization: Option<&str>) -> Request<()> {
        let mut request = Request::builder().uri(path);
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn only_users_who_are_named_may_operate() {
        let guard = Guard::Users(vec![0, 7]);
        let request = asking("/v1/status", Some("Bearer anything"));
        for user in [0, 7] {
            assert_eq!(guard.admit(Caller::User(Some(user)), &request), Ok(()));
        }
        for caller in [Caller::User(Some(8)), Caller::User(None), Caller::Port] {
            assert!(guard.admit(caller, &request).is_err(), "{caller:?}");
            assert!(guard.admit(caller, &asking("/healthz", None)).is_err());
        }
    }

    #[test]
    fn over_a_port_only_who_has_the_token_may_operate() {
        let guard = Guard::Token(AdminToken::new("a long secret"));
        let admit = |path, value| guard.admit(Caller::Port, &asking(path, value)).is_ok();
        assert!(admit("/v1/gc", Some("Bearer a long secret")));
        for wrong in [
            None,
            Some("Bearer "),
            Some("Bearer a long secre"),
            Some("Bearer a long secret "),
            Some("Basic a long secret"),
            Some("a long secret"),
        ] {
            assert!(!admit("/v1/gc", wrong), "{wrong:?}");
            assert!(!admit("/metrics", wrong), "{wrong:?}");
            assert!(admit("/healthz", wrong) && admit("/readyz", wrong));
        }
        let mut post = asking("/healthz", None);
        *post.method_mut() = Method::POST;
        assert!(guard.admit(Caller::Port, &post).is_err());
        assert!(!format!("{guard:?}").contains("secret"));
    }
}
