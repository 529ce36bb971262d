//! Clients with more connections than they may have, or need.

use std::io::Read as _;

use super::*;

/// Who has as many connections as it may hears so on the next one, and not that the mirror is gone.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_too_many_connections_is_told() {
    served(0, |address| {
        for method in ["GET", "HEAD", "PUT"].repeat(10) {
            let said = asked_for_api(address, method).unwrap();
            assert!(said.starts_with("HTTP/1.1 503 "), "{method}: {said}");
            assert!(said.contains("connection: close"), "{said}");
            assert_eq!(said.contains("TOOMANYREQUESTS"), method != "HEAD", "{said}");
        }
    })
    .await;
}

/// Those that send nothing are waited for until their deadline only while nobody else comes.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_send_nothing_keep_nobody_out() {
    served(8, |address| {
        let silent: Vec<_> = (0..200)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let since = Instant::now();
        // Most of those that are refused are closed at once.
        while !asked_for_api(address, "GET").is_ok_and(|said| said.starts_with("HTTP/1.1 200 ")) {
            // Half of the time that a client has for its head.
            assert!(since.elapsed() < Duration::from_secs(15), "no place");
        }
        drop(silent);
    })
    .await;
}

/// Those that take nothing of a long answer are waited for for a second, however many others come.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_taken_keep_nobody_out() {
    let registry = Registry::start();
    // Much more than sockets take.
    let digest = registry.put_blob("app", &vec![0; 32 << 20]);
    let request = format!("GET /v2/app/blobs/{digest} HTTP/1.1\r\nHost: a\r\n\r\n");
    served_of(registry, 8, move |address| {
        let taking_nothing = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            // Its answer has begun. One that is refused may be closed first.
            let _begun = stream.read(&mut [0; 9]);
            stream
        };
        let taking_nothing: Vec<_> = (0..16).map(|_| taking_nothing()).collect();
        let since = Instant::now();
        while !asked_for_api(address, "GET").is_ok_and(|said| said.starts_with("HTTP/1.1 200 ")) {
            // Half of the time that a client has for some of its answer.
            assert!(since.elapsed() < Duration::from_secs(30), "no place");
        }
        drop(taking_nothing);
    })
    .await;
}

async fn served(connections_of_one: u32, with: impl FnOnce(SocketAddr) + Send + 'static) {
    served_of(Registry::start(), connections_of_one, with).await;
}

/// Runs `with` beside a mirror of a registry that lets one address have so many connections.
async fn served_of(
    registry: Registry,
    connections_of_one: u32,
    with: impl FnOnce(SocketAddr) + Send + 'static,
) {
    let dir = tempfile::tempdir().unwrap();
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("docker.io"), Access::All)],
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = ServeConfig {
        connections_of_one,
        ..ServeConfig::default()
    };
    let (close, closed) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(serve(mirror, listener, config, closed));
    tokio::task::spawn_blocking(move || with(address))
        .await
        .unwrap();
    close.send(true).unwrap();
    serving.await.unwrap();
}

/// Sends one request, with more of a body than sockets take, and returns the answer.
fn asked_for_api(address: SocketAddr, method: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let long = if method == "PUT" { 4 << 20 } else { 0 };
    let head = format!(
        "{method} /v2/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {long}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&vec![b'x'; long])?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}
