//! Connections: which peers are admitted, how many, and for how long.

use std::convert::Infallible;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serving::api::{Closed, Connections, Turn};
use serving::transport::part;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::context::ApiContext;
use super::reply::{HttpResponse, Refusal};
use super::requests::Call;
use super::routes;
use node_api::bodies::Pace;

/// Connections at a time. Beyond them, those that only wait for their peer make room for others.
const CONNECTIONS_MAX: u32 = 256;

/// The longest head. Ours have some 150 bytes.
const HEAD_MAX: usize = 8 << 10;

/// The longest body: paths have at most 4 KiB, and no request names more than a handful.
const BODY_MAX: usize = 64 << 10;

/// How much of a body that is too long is read before the client gets the error.
const DISCARD_MAX: usize = 1 << 20;

/// How long a client may take to send its head, and again to send its body, and again to take
/// the answer.
const PEER_DEADLINE: Duration = Duration::from_secs(5);

/// How long the end waits for answers that are under way.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

impl ApiContext {
    /// Makes a call on a thread that may block, within the deadline of its route.
    async fn ask(
        self: &Arc<Self>,
        route: &'static routes::Route,
        call: Call,
    ) -> Result<HttpResponse, Refusal> {
        let context = Arc::clone(self);
        let callers = Arc::clone(&self.callers[route.pace as usize]);
        let asked = async {
            // Held by the call and not by us: one that hangs keeps its place, and no more than
            // there are places can hang.
            let Ok(place) = callers.acquire_owned().await else {
                return Err(Refusal::unavailable("the node ends"));
            };
            let call = move || {
                let answer = (route.answer)(&context, &call);
                drop(place);
                answer
            };
            tokio::task::spawn_blocking(call)
                .await
                .unwrap_or_else(|_| Err(Refusal::failed("the request ended in a panic")))
        };
        let deadline = route.pace.deadline();
        timeout(deadline, asked).await.unwrap_or_else(|_| {
            Err(Refusal::unavailable(format!(
                "no response within {} s; the operation continues",
                deadline.as_secs()
            )))
        })
    }

    async fn answer(
        self: &Arc<Self>,
        admitted: &Result<(), String>,
        turn: &Turn,
        request: Request<Incoming>,
    ) -> Result<HttpResponse, Refusal> {
        admitted.clone().map_err(Refusal::forbidden)?;
        let (route, id) = routes::find(request.method(), request.uri().path())?;
        let query = request.uri().query().map(ToOwned::to_owned);
        let body = body_of(request.into_body()).await?;
        let _busy = turn.begin();
        self.ask(route, Call { id, query, body }).await
    }
}

/// Returns the whole body. One that is too long is read and thrown away, up to a limit: a client
/// that is cut off while it sends does not see the answer.
async fn body_of(mut body: Incoming) -> Result<Vec<u8>, Refusal> {
    let mut whole = Vec::new();
    let mut length = 0;
    let read = async {
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|error| Refusal::invalid(format!("the body did not arrive: {error}")))?;
            let data = frame.into_data().unwrap_or_default();
            length += data.len();
            if length > DISCARD_MAX {
                break;
            }
            if length <= BODY_MAX {
                whole.extend_from_slice(&data);
            }
        }
        Ok(())
    };
    timeout(PEER_DEADLINE, read)
        .await
        .unwrap_or_else(|_| Err(Refusal::slow()))?;
    if length > BODY_MAX {
        return Err(Refusal::too_large(BODY_MAX));
    }
    Ok(whole)
}

/// Accepts connections until `closed`, and then waits until the accepted ones have their responses.
pub(super) async fn take_connections(
    listener: UnixListener,
    context: Arc<ApiContext>,
    closed: Closed,
) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("the API cannot use its socket: {error}"),
    };
    let connections = Connections::up_to(CONNECTIONS_MAX);
    let accept = async || listener.accept().await.map(|(stream, _)| stream);
    let converse = |stream, turn| {
        let context = Arc::clone(&context);
        async move { converse(stream, &turn, &context).await }
    };
    connections.take(closed, accept, converse).await;
    drop(listener);
    if !connections.wait_until_over(CLOSE_DEADLINE).await {
        log::warn!("the API ends while requests are unanswered");
    }
}

/// Answers the one request of a connection.
async fn converse(mut stream: UnixStream, turn: &Turn, context: &Arc<ApiContext>) {
    let admitted = context.admission.check_peer(&stream);
    let service = service_fn(|request| async {
        let what = format!("{} {}", request.method(), request.uri());
        let answer = context
            .answer(&admitted, turn, request)
            .await
            .unwrap_or_else(Refusal::into_answer);
        context.answers.count(answer.status());
        log::debug!("api: {what}: {}", answer.status().as_u16());
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PEER_DEADLINE)
        .max_buf_size(HEAD_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(&mut stream), service);
    // All deadlines within it, and one for a client that does not take its answer.
    let all = PEER_DEADLINE * 3 + Pace::Load.deadline();
    match timeout(all, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => log::debug!("api: a client went away: {error}"),
        Err(_) => log::debug!("api: a client does not take its answer"),
    }
    // Who was refused gets its answer, whatever it has sent beside.
    part(&mut stream).await;
}
