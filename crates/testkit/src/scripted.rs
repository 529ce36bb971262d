//! A server over plain HTTP that answers what a test says, and remembers what it was asked.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

/// Longer than any test takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Scripted {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    over: AtomicBool,
}

/// What was asked.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The method.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// The headers, by their names in lower case.
    pub headers: HashMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Seen {
    /// Returns the header `Authorization`.
    pub fn authorization(&self) -> Option<&str> {
        self.headers.get("authorization").map(String::as_str)
    }
}

/// What is answered: a status, headers and a body.
pub type Answer = (u16, Vec<(&'static str, String)>, &'static str);

/// Answers that the thing is elsewhere.
pub fn redirect(status: u16, to: impl Into<String>) -> Answer {
    (status, vec![("Location", to.into())], "")
}

/// Demands a token, which is given out at `realm`.
pub fn bearer(realm: &str) -> Answer {
    let demand = format!("Bearer realm=\"{realm}\",service=\"test\"");
    (401, vec![("WWW-Authenticate", demand)], "")
}

impl Scripted {
    /// Starts one on 127.0.0.1.
    pub fn start(answer: impl Fn(&Seen) -> Answer + Send + 'static) -> Self {
        Self::start_at("127.0.0.1:0", answer)
    }

    /// Starts one at an address.
    pub fn start_at(at: &str, answer: impl Fn(&Seen) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let acceptor = spawn(move || {
            for client in listener.incoming().flatten() {
                if serving.over.load(SeqCst) {
                    break;
                }
                serving.serve(&client, &answer);
            }
        });
        Self {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns what was asked until now.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        let _woken = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _joined = acceptor.join();
        }
    }
}

impl Shared {
    /// Answers one request of a connection. A client that goes away is no fault.
    fn serve(&self, client: &TcpStream, answer: &impl Fn(&Seen) -> Answer) {
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut reader = BufReader::new(client);
        let Some(seen) = read(&mut reader) else {
            return;
        };
        let (status, headers, body) = answer(&seen);
        let is_head = seen.method == "HEAD";
        self.seen.lock().unwrap().push(seen);
        let mut text = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Content-Length") {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        if !is_head {
            text += body;
        }
        let mut client = client;
        let _told = client.write_all(text.as_bytes());
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let mut seen = Seen {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        ..Seen::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        let value = value.trim().to_owned();
        seen.headers.insert(name.to_ascii_lowercase(), value);
    }
    let length = seen.headers.get("content-length");
    let length = length.map_or(0, |length| length.parse().unwrap());
    seen.body.resize(length, 0);
    reader.read_exact(&mut seen.body).ok()?;
    Some(seen)
}
