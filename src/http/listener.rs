//! Sockets and connections: what is listened on, and the limits of each connection.
//!
//! A *connection* is one client's socket; it carries requests one after the other. What is said on it is `routes.rs`'s.
//! A client that closes its side, even only for writing, counts as gone: on the wire both look alike, and hyper drops the
//! handler or the body then. One exception: while bytes of a next, pipelined request wait unread, only a failed write shows it.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::future::select_all;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;
use tracing::{error, info, trace, warn};

use super::House;
use super::access::Access;
use super::answer::{App, Closing, Peer, unix_seconds};
use super::routes::router;
use crate::config::{self, KeyHash, Listen};

/// Time for a request's headers to arrive; also how long an idle connection is kept. Longer than Python's clients keep
/// theirs (httpx 5 s, aiohttp 15 s): were it the server that closes first, a request could meet a closing connection.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);

/// Request line and headers, in bytes. Cookies of other services on the same host come along, so not less.
const HEADERS_BYTES_MAX: usize = 32 * 1024;

/// More wait in the kernel's backlog. A house has dozens of clients; each connection costs a buffer and a descriptor, of
/// which a process has 1,024 by default.
const CONNECTIONS_MAX: usize = 512;

/// When descriptors run out, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long running answers may go on after the stop, and then how long their last words may take. Together the 10 s that
/// SIGTERM grants.
const DRAIN: Duration = Duration::from_secs(9);
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{address} is in use by another program: stop that one, or change server.listen")]
    InUse { address: Listen },
    #[error("cannot listen on {address}")]
    Io { address: Listen, source: io::Error },
}

/// Bound sockets, not served yet: clients that connect wait.
pub struct Server {
    sockets: Vec<Socket>,
    max_body: u64,
    start_wait: Duration,
    access: config::Access,
    house_key: Option<KeyHash>,
}

impl Server {
    /// Binds all addresses of `config.listen`, or none. Needs a tokio runtime.
    pub async fn bind(config: &config::Server) -> Result<Server, BindError> {
        let mut sockets = Vec::new();
        for address in &config.listen {
            let socket = Socket::bind(address).await.map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
                _ => BindError::Io { address: address.clone(), source },
            })?;
            sockets.push(socket);
        }
        let config::Server { max_body, start_wait, .. } = *config;
        Ok(Server { sockets, max_body, start_wait, access: config.access.clone(), house_key: None })
    }

    /// Lets commands on this machine in by their own key.
    #[must_use]
    pub fn with_house_key(self, key: KeyHash) -> Server {
        Server { house_key: Some(key), ..self }
    }

    /// Where it listens, ports resolved where 0 was asked for.
    pub fn addresses(&self) -> Vec<Listen> {
        self.sockets.iter().map(|socket| socket.address.clone()).collect()
    }

    /// Answers until `stop`, then lets running answers end for up to 10 s.
    pub async fn serve(self, house: Arc<dyn House>, stop: impl Future<Output = ()>) {
        let (close, closing) = watch::channel(false);
        let app = App {
            house,
            max_body: self.max_body,
            start_wait: self.start_wait,
            started: Instant::now(),
            created: unix_seconds(),
            closing: Closing(closing),
            access: Access::new(self.access, self.house_key),
            has_told_num_ctx: AtomicBool::new(false),
        };
        let mut connections = Connections::new(router(Arc::new(app)));

        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                (permit, accepted) = accept(&self.sockets, &connections.permits) => match accepted {
                    Ok((stream, peer)) => connections.open(stream, peer, permit),
                    Err(error) => {
                        warn!(%error, "a connection could not be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(ended) = connections.tasks.join_next() => report(ended),
            }
        }

        // From here on connecting fails, which tells more than waiting would.
        drop(self.sockets);
        info!(n_connections = connections.tasks.len(), "http stops");
        connections.drain(|| _ = close.send(true)).await;
    }
}

struct Socket {
    listener: Listener,
    address: Listen,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    async fn bind(address: &Listen) -> io::Result<Socket> {
        Ok(match address {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                let address = Listen::Tcp(listener.local_addr()?);
                Socket { listener: Listener::Tcp(listener), address }
            }
            Listen::Unix(path) => {
                Socket { listener: Listener::Unix(bind_unix(path).await?), address: Listen::Unix(path.clone()) }
            }
        })
    }

    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Each token is a small write; waiting to fill a packet would hold it back.
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Peer(tcp_name(peer).into())))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), Peer("unix".into())))
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Listen::Unix(path) = &self.address {
            // Left behind it does no harm: the next start finds that nobody listens there.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket file outlives a daemon that was killed; nobody listens there, and it is replaced.
async fn bind_unix(path: &PathBuf) -> io::Result<UnixListener> {
    let in_use = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        bound_or_failed => return bound_or_failed,
    };
    let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
    match UnixStream::connect(path).await {
        Err(error) if is_socket && error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        _ => Err(in_use),
    }
}

/// A client's name is its address; an IPv4 address that came through an IPv6 socket is the same client.
fn tcp_name(peer: SocketAddr) -> String {
    peer.ip().to_canonical().to_string()
}

/// The next connection of any socket, once there is room for one. Safe to cancel.
async fn accept(sockets: &[Socket], permits: &Arc<Semaphore>) -> (OwnedSemaphorePermit, io::Result<(Stream, Peer)>) {
    let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
    let (accepted, _, _) = select_all(sockets.iter().map(|socket| Box::pin(socket.accept()))).await;
    (permit, accepted)
}

/// Open connections, a task each.
struct Connections {
    router: Router,
    http: http1::Builder,
    permits: Arc<Semaphore>,
    tasks: JoinSet<()>,
    graceful: GracefulShutdown,
}

impl Connections {
    fn new(router: Router) -> Connections {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_header_size(HEADERS_BYTES_MAX);
        Connections {
            router,
            http,
            permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            tasks: JoinSet::new(),
            graceful: GracefulShutdown::new(),
        }
    }

    fn open(&mut self, stream: Stream, peer: Peer, permit: OwnedSemaphorePermit) {
        match stream {
            Stream::Tcp(stream) => self.serve(TokioIo::new(stream), peer, permit),
            Stream::Unix(stream) => self.serve(TokioIo::new(stream), peer, permit),
        }
    }

    fn serve<I>(&mut self, io: I, peer: Peer, permit: OwnedSemaphorePermit)
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let router = self.router.clone();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            router.clone().oneshot(request.map(Body::new))
        });
        let connection = self.graceful.watch(self.http.serve_connection(io, service));
        self.tasks.spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                // Clients that vanish, time out or talk nonsense: everyday things.
                trace!(%error, "connection ended");
            }
        });
    }

    /// Waits for running answers; `close` tells them to end.
    async fn drain(mut self, close: impl FnOnce()) {
        let ended = self.graceful.shutdown();
        let mut ended = std::pin::pin!(ended);
        if timeout(DRAIN, &mut ended).await.is_err() {
            close();
            let _ = timeout(LAST_WORDS, ended).await;
        }
        self.tasks.shutdown().await;
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a connection's task panicked");
    }
}
