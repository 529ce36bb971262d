//! Sessions with a runtime that is played by a script: the bytes are those of NRI's own description.

#![expect(clippy::big_endian_bytes, reason = "the protocol is big-endian")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nri::{Ended, Identity, Image, Listener, NriError, Pod, Session};
use prost::Message as _;

/// What a listener heard.
#[derive(Debug, Default, PartialEq)]
struct Heard(Vec<String>);

impl Listener for Heard {
    fn pod_runs(&mut self, pod: &Pod) {
        self.0.push(format!("pod {}/{}", pod.namespace, pod.name));
    }

    fn container_is_made(&mut self, pod: &Pod, image: &Image) {
        self.0.push(format!("{} of {}", image.name, pod.name));
    }
}

fn tagged(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![tag << 3 | 2];
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend(bytes);
    field
}

/// A call of the runtime: a frame of connection 1 with a ttrpc request.
fn call(stream: u32, method: &str, payload: &[u8]) -> Vec<u8> {
    let mut request = tagged(1, b"nri.pkg.api.v1alpha1.Plugin");
    request.extend(tagged(2, method.as_bytes()));
    request.extend(tagged(3, payload));
    framed(1, stream, 1, &request)
}

fn framed(connection: u32, stream: u32, kind: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    let mut bytes = connection.to_be_bytes().to_vec();
    bytes.extend((length + 10).to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(stream.to_be_bytes());
    bytes.extend([kind, 0]);
    bytes.extend(message);
    bytes
}

/// Reads a frame of the plugin's: its connection, the number of the call, and the message.
fn read(stream: &mut UnixStream) -> (u32, u32, Vec<u8>) {
    let mut header = [0; 18];
    stream.read_exact(&mut header).unwrap();
    let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    let mut message = vec![0; number(8) as usize];
    stream.read_exact(&mut message).unwrap();
    (number(0), number(12), message)
}

/// A runtime that answers the registration, and then does what a script says.
fn runtime(
    answer: &'static [u8],
    script: impl FnOnce(&mut UnixStream) + Send + 'static,
) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (connection, call, request) = read(&mut stream);
        assert_eq!((connection, call), (2, 1));
        let text = String::from_utf8_lossy(&request).into_owned();
        for word in [
            "nri.pkg.api.v1alpha1.Runtime",
            "RegisterPlugin",
            "test",
            "07",
        ] {
            assert!(text.contains(word), "{word} is not in {text:?}");
        }
        stream.write_all(&framed(2, 1, 2, answer)).unwrap();
        script(&mut stream);
    });
    (dir, socket)
}

fn pod(name: &str) -> Vec<u8> {
    Pod {
        id: format!("id of {name}"),
        name: name.to_owned(),
        namespace: "default".to_owned(),
        ..Pod::default()
    }
    .encode_to_vec()
}

fn container(pod_id: &str, image: &str) -> Vec<u8> {
    let mut container = tagged(2, pod_id.as_bytes());
    let image = tagged(1, image.as_bytes());
    // Field 22 has a tag of two bytes.
    container.extend([0xb2, 0x01, u8::try_from(image.len()).unwrap()]);
    container.extend(image);
    container
}

#[test]
fn a_plugin_hears_of_pods_before_their_containers() {
    let (_dir, socket) = runtime(b"", |stream| {
        stream.write_all(&call(3, "Configure", b"")).unwrap();
        // Events 1 and 4, in the field `events`.
        assert_eq!(read(stream), (1, 3, tagged(2, &[2 << 3, 0b1001])));
        let mut all = tagged(1, &pod("before"));
        all.extend(tagged(2, &container("id of before", "one")));
        all.extend([3 << 3, 1]);
        stream.write_all(&call(5, "Synchronize", &all)).unwrap();
        assert_eq!(read(stream), (1, 5, tagged(2, &[2 << 3, 1])), "and more");
        let rest = tagged(2, &container("id of before", "two"));
        stream.write_all(&call(7, "Synchronize", &rest)).unwrap();
        assert_eq!(read(stream), (1, 7, vec![]));
        let bytes = call(9, "RunPodSandbox", &tagged(1, &pod("web")));
        // In pieces, as a busy socket has them.
        for part in bytes.chunks(5) {
            stream.write_all(part).unwrap();
        }
        assert_eq!(read(stream), (1, 9, vec![]));
        let mut made = tagged(1, &pod("web"));
        made.extend(tagged(2, &container("", "nginx:1.25")));
        stream
            .write_all(&call(11, "CreateContainer", &made))
            .unwrap();
        assert_eq!(read(stream), (1, 11, vec![]));
        // Earlier runtimes.
        let mut change = vec![1 << 3, 1];
        change.extend(tagged(2, &pod("old")));
        stream.write_all(&call(13, "StateChange", &change)).unwrap();
        assert_eq!(read(stream), (1, 13, vec![]));
        stream.write_all(&call(15, "Unheard", b"")).unwrap();
        let (_, _, refused) = read(stream);
        assert!(String::from_utf8_lossy(&refused).contains("Unheard is not implemented"));
        stream.write_all(&call(17, "Shutdown", b"")).unwrap();
        assert_eq!(read(stream), (1, 17, vec![]));
    });
    let mut session = Session::register(&socket, &Identity::new("test", 7)).unwrap();
    let mut heard = Heard::default();
    let ended = session.serve(&mut heard, &|| false).unwrap();
    assert_eq!(ended, Ended::Shutdown);
    let expected = [
        "one of before",
        "two of before",
        "pod default/web",
        "nginx:1.25 of web",
        "pod default/old",
    ];
    assert_eq!(heard.0, expected);
}

#[test]
fn a_runtime_that_refuses_or_lies_is_an_error() {
    let identity = Identity::new("test", 107);
    // A status with the code 7 and a text.
    let (_dir, socket) = runtime(b"\x0a\x08\x08\x07\x12\x04none", |_| {});
    let refused = Session::register(&socket, &identity).unwrap_err();
    assert_eq!(refused.to_string(), "the runtime refused the plugin: none");

    let (_dir, socket) = runtime(b"", |_| {});
    let mut session = Session::register(&socket, &identity).unwrap();
    let closed = session.serve(&mut Heard::default(), &|| false);
    assert!(matches!(closed, Err(NriError::Closed { .. })), "{closed:?}");

    let (_dir, socket) = runtime(b"", |stream| {
        stream.write_all(&[0, 0, 0, 1, 0xff, 0, 0, 0]).unwrap();
        let _until_the_plugin_leaves = stream.read(&mut [0]);
    });
    // It may come with the answer to the registration, or after it.
    let long = Session::register(&socket, &identity)
        .and_then(|mut session| session.serve(&mut Heard::default(), &|| false));
    assert!(matches!(long, Err(NriError::TooLong { .. })), "{long:?}");

    let (_dir, socket) = runtime(b"", |stream| {
        stream
            .write_all(&call(3, "RunPodSandbox", b"\xff"))
            .unwrap();
        let _until_the_plugin_leaves = stream.read(&mut [0]);
    });
    let mut session = Session::register(&socket, &identity).unwrap();
    let bad = session.serve(&mut Heard::default(), &|| false);
    assert!(matches!(bad, Err(NriError::Message { .. })), "{bad:?}");
}

#[test]
fn a_session_ends_when_it_is_asked_to() {
    let (_dir, socket) = runtime(b"", |stream| {
        let _until_the_plugin_leaves = stream.read(&mut [0]);
    });
    let mut session = Session::register(&socket, &Identity::new("test", 7)).unwrap();
    let ended = session.serve(&mut Heard::default(), &|| true).unwrap();
    assert_eq!(ended, Ended::Asked);
}

/// Waits, when a pod runs, until the runtime has the answer.
struct Slow(Receiver<()>);

impl Listener for Slow {
    fn pod_runs(&mut self, _: &Pod) {
        let answered = self.0.recv_timeout(Duration::from_secs(30));
        answered.expect("the runtime waits for its answer");
    }

    fn container_is_made(&mut self, _: &Pod, _: &Image) {}
}

#[test]
fn a_pod_does_not_wait_for_what_is_done_about_it() {
    let (answered, heard) = channel();
    let (_dir, socket) = runtime(b"", move |stream| {
        let bytes = call(3, "RunPodSandbox", &tagged(1, &pod("web")));
        stream.write_all(&bytes).unwrap();
        assert_eq!(read(stream), (1, 3, vec![]));
        answered.send(()).unwrap();
        stream.write_all(&call(5, "Shutdown", b"")).unwrap();
        assert_eq!(read(stream), (1, 5, vec![]));
    });
    let mut session = Session::register(&socket, &Identity::new("test", 7)).unwrap();
    let ended = session.serve(&mut Slow(heard), &|| false).unwrap();
    assert_eq!(ended, Ended::Shutdown);
}

#[test]
fn what_the_runtime_asks_before_it_answers_the_registration_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let runtime = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let _registration = read(&mut stream);
        stream.write_all(&call(3, "Configure", b"")).unwrap();
        stream.write_all(&framed(2, 1, 2, b"")).unwrap();
        let (_, number, _) = read(&mut stream);
        stream.write_all(&call(5, "Shutdown", b"")).unwrap();
        assert_eq!(read(&mut stream), (1, 5, vec![]));
        number
    });
    let mut session = Session::register(&socket, &Identity::new("test", 7)).unwrap();
    let ended = session.serve(&mut Heard::default(), &|| false).unwrap();
    assert_eq!(ended, Ended::Shutdown);
    assert_eq!(runtime.join().unwrap(), 3);
}
