//! When a recorded workload counts as ready.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use regex::bytes::Regex;

use crate::machine::MachineSign;

/// How long one attempt to reach a port may take; a workload that is up answers at once.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// How much of an HTTP answer is read: the status line is all that counts.
const STATUS_LINE_MAX: usize = 256;

/// The value of `--until`.
#[derive(Clone, Debug)]
pub enum Until {
    /// A line of the command's output matches.
    Line(Regex),
    /// Something accepts connections on this port of the loopback address.
    Tcp(u16),
    /// A GET of this URL is answered with a status below 400.
    Http(HttpUrl),
    /// The command ends with code 0.
    Exit,
    /// Nothing was read for so long.
    Quiet(Duration),
    /// So much time has passed.
    After(Duration),
    /// The image's health check succeeds.
    Healthy(Checks),
    /// A virtual machine shows this.
    Machine(MachineSign),
}

/// How the health check is run, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// We have it run often: an image's own interval is made for years of service.
    Often,
    /// By Docker, with the image's interval.
    AsDocker,
}

/// Parses a number of seconds, as in `2` or `0.5`: for options.
///
/// # Errors
/// If it is not one.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let secs: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(secs).map_err(|error| error.to_string())
}

/// A plain `http://HOST[:PORT]/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    host: String,
    port: u16,
    path: String,
}

impl FromStr for Until {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("exit", "") => Ok(Self::Exit),
            ("healthy", "") => Ok(Self::Healthy(Checks::Often)),
            ("docker", "healthy") => Ok(Self::Healthy(Checks::AsDocker)),
            ("line", regex) if !regex.is_empty() => Ok(Self::Line(
                Regex::new(regex).context("the regular expression is wrong")?,
            )),
            ("tcp", port) => Ok(Self::Tcp(port.parse().context("a port is 1 to 65535")?)),
            ("http", _) => Ok(Self::Http(
                text.strip_prefix("http:http:")
                    .map_or_else(|| text.parse(), |rest| format!("http:{rest}").parse())?,
            )),
            ("quiet" | "after", secs) => {
                let time = seconds(secs).map_err(anyhow::Error::msg);
                let time = time.with_context(|| format!("{kind} needs seconds, as in {kind}:2"))?;
                Ok(match kind {
                    "quiet" => Self::Quiet(time),
                    _ => Self::After(time),
                })
            }
            ("ssh" | "qmp" | "agent", _) => Ok(Self::Machine(text.parse()?)),
            _ => bail!(
                "use line:REGEX, tcp:PORT, http:URL, exit, quiet:SECS, after:SECS or, for images, \
                 healthy or docker:healthy, or, for vm:IMAGE, ssh, qmp:EVENT or agent"
            ),
        }
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(regex) => write!(f, "a line that matches {:?}", regex.as_str()),
            Self::Tcp(port) => write!(f, "a connection to port {port}"),
            Self::Http(url) => write!(
                f,
                "an answer from http://{}:{}{}",
                url.host, url.port, url.path
            ),
            Self::Exit => write!(f, "the command's end"),
            Self::Quiet(time) => write!(f, "{} s without a read", time.as_secs_f64()),
            Self::After(time) => write!(f, "{} s to pass", time.as_secs_f64()),
            Self::Healthy(_) => write!(f, "a health check that succeeds"),
            Self::Machine(sign) => sign.fmt(f),
        }
    }
}

impl FromStr for HttpUrl {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text
            .strip_prefix("http://")
            .context("only http:// URLs can be watched")?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().context("a port is 1 to 65535")?),
            None => (host, 80),
        };
        let path = if path.is_empty() { "/" } else { path };
        if host.is_empty() || path.contains(|c: char| c.is_whitespace() || c.is_control()) {
            bail!("not a URL: {text}");
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }
}

/// Returns whether something accepts connections on `port` of the loopback address.
#[must_use]
pub fn port_answers(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&address, PROBE_TIMEOUT).is_ok()
}

/// Returns whether a GET of `url` is answered with a status below 400.
#[must_use]
pub fn http_answers(url: &HttpUrl) -> bool {
    http_status(url).is_some_and(|status| (100..400).contains(&status))
}

fn http_status(url: &HttpUrl) -> Option<u16> {
    let address = (url.host.as_str(), url.port)
        .to_socket_addrs()
        .ok()?
        .next()?;
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(PROBE_TIMEOUT)).ok()?;
    // In one piece: a server that answers the first line and closes would reset us over the rest.
    let request = format!("GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", url.path, url.host);
    stream.write_all(request.as_bytes()).ok()?;
    let mut head = Vec::new();
    let mut chunk = [0; STATUS_LINE_MAX];
    while !head.contains(&b'\n') && head.len() < STATUS_LINE_MAX {
        let read = stream.read(&mut chunk).ok()?;
        if read == 0 {
            break;
        }
        head.extend_from_slice(&chunk[..read]);
    }
    let line = head.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.strip_prefix("HTTP/")?;
    line.split(' ').nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn names_every_condition() {
        for text in [
            "exit",
            "line:^ready",
            "tcp:80",
            "http://x:1/y",
            "http:http://x/",
            "quiet:0.5",
            "after:3",
            "healthy",
            "docker:healthy",
            "ssh",
            "qmp:RTC_CHANGE",
            "agent",
        ] {
            assert!(text.parse::<Until>().is_ok(), "{text}");
        }
        for text in [
            "",
            "exit:1",
            "healthy:x",
            "docker:",
            "docker:well",
            "line:",
            "line:(",
            "tcp:x",
            "tcp:70000",
            "http:ftp",
            "quiet:-1",
            "after:",
            "when",
        ] {
            assert!(text.parse::<Until>().is_err(), "{text}");
        }
    }

    #[test]
    fn url_has_defaults() {
        let url: HttpUrl = "http://localhost".parse().unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.path.as_str()),
            ("localhost", 80, "/")
        );
        assert!("https://localhost".parse::<HttpUrl>().is_err());
        assert!("http://h/a b".parse::<HttpUrl>().is_err());
    }

    /// Answers one connection with `answer`, after reading the whole request: closing with some
    /// of it unread would reset the connection.
    fn serve_once(answer: &'static str) -> HttpUrl {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut chunk = [0; 64];
                let read = stream.read(&mut chunk).unwrap();
                assert!(read > 0);
                request.extend_from_slice(&chunk[..read]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        });
        format!("http://127.0.0.1:{port}/health").parse().unwrap()
    }

    #[test]
    fn http_wants_a_good_status() {
        assert!(http_answers(&serve_once("HTTP/1.1 200 OK\r\n\r\n")));
        assert!(http_answers(&serve_once("HTTP/1.0 302 Found\r\n\r\n")));
        assert!(!http_answers(&serve_once("HTTP/1.1 503 Not yet\r\n\r\n")));
        assert!(!http_answers(&serve_once("SSH-2.0-OpenSSH\r\n")));
    }

    #[test]
    fn port_of_nobody_does_not_answer() {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        assert!(!port_answers(port));
    }
}
