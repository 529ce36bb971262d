//! Links of programs: what a start without a plan reads ahead.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use blocks::testing::{MemSource, Node, tree};
use blocks::{BlockSource as _, FileId, Tree};
use blockservice::client::{Ask, Client, NicSource, Wanted};
use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{HEAD_BYTES, Head};
use chunks::index::{CHUNK_BYTES, Index, build};
use chunks::links::Links;
use link_emulator::{Link, Shape};
use rig::raw::Raw;
use rig::streams::{Large, NONE, start};
use rig::{Rig, content, patient_client, until};

const LONG: Duration = Duration::from_secs(60);
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Libraries, each of which is linked with the next. They lie in directories of their own.
const LIBRARIES: u32 = 8;
/// The kind of a frame with links.
const LINKS: u8 = 32;

/// An ELF file of one chunk that is linked with this library.
fn program(library: &str, seed: u64) -> Vec<u8> {
    let mut bytes = content(seed, CHUNK_BYTES);
    let directory = format!("/{library}.d");
    testkit::elf::write_program(&mut bytes, 1024, library, Some(&directory));
    bytes
}

/// A source named `far`: a program, and a chain of libraries.
struct Chain {
    tree: Arc<Tree>,
    index: Index,
    contents: Vec<(FileId, Vec<u8>)>,
}

/// The name of a library; that of a program is number 0.
fn name(nth: u32) -> String {
    // By its name alone nobody takes it for a library.
    format!("x{nth}")
}

fn chain(rig: &Rig) -> Chain {
    let dirs: Vec<_> = (0..=LIBRARIES)
        .map(|n| (format!("{}.d", name(n)), 1 + 2 * n))
        .collect();
    let dirs: Vec<_> = dirs.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let mut nodes = vec![Node::dir(&dirs)];
    let mut contents = Vec::new();
    for nth in 0..=LIBRARIES {
        let file = FileId(2 + 2 * nth);
        nodes.push(Node::dir(&[(&name(nth), file.0)]));
        let mut node = Node::file(CHUNK_BYTES);
        node.attr.perm = 0o755;
        nodes.push(node);
        contents.push((file, program(&name(nth + 1), u64::from(nth) + 1)));
    }
    let tree = Arc::new(tree(&nodes).unwrap());
    let mut files = MemSource::default();
    for (file, content) in &contents {
        files.insert(tree.key(*file).unwrap(), content.clone());
    }
    let go_on = &mut |_| ControlFlow::Continue(());
    let index = build(b"far", &tree, &files, &*rig.store, go_on)
        .unwrap()
        .index;
    Chain {
        tree,
        index,
        contents,
    }
}

impl Chain {
    /// Starts the program, and returns how many chunks were waited for.
    fn start(&self, rig: &Rig, client: &Client) -> u64 {
        let wanted = Wanted {
            name: b"far",
            id: None,
            have: None,
            ask: Ask::Chunks,
        };
        let started = client.start_source(&wanted, LONG).unwrap();
        assert!(started.plan.is_none());
        let source = NicSource::new(started.remote, None, None, LONG);
        let waited = || rig.metric(r#"answers_total{priority="demand",answer="sent"}"#);
        let before = waited();
        for (file, content) in &self.contents {
            let key = self.tree.key(*file).unwrap();
            let mut buf = vec![0; content.len()];
            assert_eq!(source.read_at(&key, 0, &mut buf).unwrap(), content.len());
            assert!(buf == *content);
        }
        assert_eq!(source.remote().counts().duplicate_bytes, 0);
        waited() - before
    }
}

#[test]
fn what_a_program_is_linked_with_comes_in_one_round_trip() {
    let mut rig = Rig::new();
    let port = rig.start_at_port(Access::open(), Limits::default());
    let chain = chain(&rig);
    let mut link = Link::new(Shape::new(ROUND_TRIP, 1000));
    let any = "127.0.0.1:0".parse().unwrap();
    let address = link.carry(&any, port.to_string().parse().unwrap()).unwrap();
    // It is added while the service runs: it reads the links without being asked.
    rig.catalog.add(b"far", &chain.index).unwrap();
    until("the links are read", || rig.metric("links_bytes") > 0);
    let with = chain.start(&rig, &patient_client(address.to_string()));
    assert_eq!(with, 1, "the program, and nothing that it is linked with");
}

#[test]
fn the_first_start_does_without_links_as_does_one_of_an_earlier_version() {
    let mut rig = Rig::new();
    let chain = chain(&rig);
    rig.catalog.add(b"one", &chain.index).unwrap();
    rig.start(Access::open(), Limits::default());
    let (mut new, version) = Raw::connect_with(&rig, "vm", (1, 5));
    assert_eq!(version, 5);
    let mut request = 0;
    let mut answers = |raw: &mut Raw<_>, ask, have| {
        request += 1;
        raw.send(request, start(ask, have), Vec::new()).unwrap();
        raw.hear_all(request)
    };
    let first = answers(&mut new, Ask::Chunks, NONE);
    assert_eq!((first.started.links_len, first.links.len()), (0, 0));
    until("the links are read", || rig.metric("links_bytes") > 0);
    for (ask, have) in [(Ask::Chunks, NONE), (Ask::Plan, chain.index.id())] {
        let found = answers(&mut new, ask, have);
        assert_eq!(found.started.links_len as usize, found.links.len());
        let links = Links::decode(&found.links, &chain.index).unwrap();
        assert_eq!(links.len(), LIBRARIES as usize);
        assert_eq!(links.of(FileId(2)).collect::<Vec<_>>(), [FileId(4)]);
    }
    assert_eq!(answers(&mut new, Ask::Index, NONE).links.len(), 0);
    for highest in 2..5 {
        let (mut old, version) = Raw::connect_with(&rig, "vm", (1, highest));
        assert_eq!(version, highest);
        let found = answers(&mut old, Ask::Chunks, NONE);
        assert_eq!((found.started.links_len, found.links.len()), (0, 0));
    }
}

#[test]
fn a_plan_goes_in_the_place_of_links() {
    let mut rig = Rig::new();
    rig.start(Access::open(), Limits::default());
    let source = Large::add(&rig);
    source.give_whole_boot(&rig);
    let (mut raw, _) = Raw::connect_with(&rig, "vm", (5, 5));
    for request in 1..3 {
        raw.send(request, start(Ask::Chunks, NONE), Vec::new())
            .unwrap();
        let answers = raw.hear_all(request);
        assert!(!answers.plan.is_empty() && answers.links.is_empty());
    }
}

/// Passes on what a service sends, but for one bit of its links. Returns its address.
fn liar(to: String, lies: &Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let lies = Arc::clone(lies);
    // It ends with the test.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (to, lies) = (to.clone(), Arc::clone(&lies));
            std::thread::spawn(move || lie(client, &to, &lies));
        }
    });
    address
}

fn lie(mut client: TcpStream, to: &str, lies: &AtomicUsize) -> io::Result<()> {
    let mut service = TcpStream::connect(to)?;
    let (mut from, mut on) = (client.try_clone()?, service.try_clone()?);
    std::thread::spawn(move || io::copy(&mut from, &mut on));
    loop {
        let mut head = [0; HEAD_BYTES];
        service.read_exact(&mut head)?;
        let parsed = Head::parse(&head).map_err(io::Error::other)?;
        let mut rest = vec![0; parsed.body_len() + parsed.data_len()];
        service.read_exact(&mut rest)?;
        if head[5] == LINKS {
            lies.fetch_add(1, Relaxed);
            let last = rest.len() - 40;
            rest[last] ^= 1;
        }
        client.write_all(&head)?;
        client.write_all(&rest)?;
    }
}

#[test]
fn links_that_are_wrong_cost_their_gain_only() {
    let mut rig = Rig::new();
    let chain = chain(&rig);
    rig.catalog.add(b"far", &chain.index).unwrap();
    let port = rig.start_at_port(Access::open(), Limits::default());
    let mut link = Link::new(Shape::new(ROUND_TRIP, 1000));
    let any = "127.0.0.1:0".parse().unwrap();
    let address = link.carry(&any, port.to_string().parse().unwrap()).unwrap();
    let lies = Arc::default();
    let client = patient_client(liar(address.to_string(), &lies));
    let first = chain.start(&rig, &client);
    assert!(first > 1, "nobody knows what it is linked with");
    until("the links are read", || rig.metric("links_bytes") > 0);
    let second = chain.start(&rig, &client);
    assert_eq!(lies.load(Relaxed), 1);
    assert!(second > 1, "they were not believed");
}
