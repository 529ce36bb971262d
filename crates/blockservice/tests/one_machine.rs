//! What one machine can do to the others that a service serves: each test is an attack.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{ErrorCode, Frame, Message, Priority};
use rig::raw::{PIECE, Raw};
use rig::{Rig, Sample, connected, content, sample, until};

const LONG: Duration = Duration::from_secs(20);
/// What the attackers say that they will send.
const PROMISED: u64 = 512 << 20;
const MIB: usize = 1 << 20;

fn serving(limits: Limits) -> (Rig, Sample) {
    let mut rig = Rig::new();
    let sample = sample("one", 1, &*rig.store);
    rig.catalog.add(b"one", &sample.index).unwrap();
    rig.start(Access::open(), limits);
    (rig, sample)
}

/// Reads a chunk, gives a boot image of so many bytes and gets it back, as another machine.
fn others_go_on(rig: &Rig, name: &str, bytes: u64) {
    let client = rig.client(name, None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    for number in 0..8 {
        let found = remote.fetch(number..number + 1, Priority::Demand, LONG);
        assert!(found[0].is_some(), "chunk {number} is refused");
    }
    let image = content(9, bytes);
    let id = client.keep_boot(b"one", &image).unwrap();
    let boots = client.boots(b"one").unwrap();
    assert_eq!(boots[0].id, id);
    assert!(client.boot(b"one", &boots[0]).unwrap() == image);
}

/// Three PUTs that bring what they can and then nothing more, for ever.
#[test]
fn three_idle_puts_stop_nobody_else() {
    let (rig, _) = serving(Limits {
        memory_bytes: 8 * MIB as u64,
        ..Limits::default()
    });
    let mut sent = 0;
    let mut attackers = [(); 3].map(|()| {
        let mut raw = Raw::connect(&rig, "attacker");
        let handle = raw.open("one");
        sent += raw.put_some(handle, PROMISED, 4 * MIB);
        (raw, handle)
    });
    // They have all that there is for boot images, and reads have the rest.
    assert_eq!(sent, 4 * MIB);
    assert_eq!(rig.stats().upload_bytes, 4 * MIB as u64);
    others_go_on(&rig, "honest", 3 * MIB as u64);
    // The first one had it all: it gave way, and hears of it.
    let (raw, handle) = &mut attackers[0];
    let refused = raw.put(*handle, PROMISED, 4 * MIB as u64, &[7; PIECE]);
    let (code, why) = refused.unwrap_err();
    assert!(code == ErrorCode::Busy && why.contains("evicted"), "{why}");
    // Its connection goes on.
    assert!(matches!(
        raw.ask(Message::Stat, Vec::new()).message,
        Message::Stats { .. }
    ));
    drop(attackers);
    until("what they had is free", || rig.stats().upload_bytes == 0);
}

/// They begin again and again what gives way: whoever has less has its turn.
#[test]
fn many_greedy_puts_slow_others_and_do_not_stop_them() {
    let (rig, _) = serving(Limits {
        memory_bytes: 8 * MIB as u64,
        ..Limits::default()
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut raw = Raw::connect(&rig, "attacker");
                let handle = raw.open("one");
                while !stop.load(Relaxed) {
                    raw.put_some(handle, PROMISED, 4 * MIB);
                }
            });
        }
        until("they have taken something", || rig.stats().upload_bytes > 0);
        for name in ["a", "b", "c", "d"] {
            others_go_on(&rig, name, 2 * MIB as u64);
        }
        stop.store(true, Relaxed);
    });
}

/// One that brings no byte is given up, and so is one that brings a few now and then.
#[test]
fn a_put_has_to_get_on() {
    let (rig, _) = serving(Limits {
        put_step_bytes: MIB as u64,
        put_step: Duration::from_millis(300),
        ..Limits::default()
    });
    let mut idle = Raw::connect(&rig, "idle");
    let handle = idle.open("one");
    idle.put(handle, PROMISED, 0, &[7; PIECE]).unwrap();
    until("it is given up", || rig.stats().upload_bytes == 0);
    let why = idle.put(handle, PROMISED, PIECE as u64, &[7; PIECE]);
    let (code, why) = why.unwrap_err();
    assert!(code == ErrorCode::Busy && why.contains("too slow"), "{why}");

    let mut trickles = Raw::connect(&rig, "trickles");
    let handle = trickles.open("one");
    let mut sent = 0;
    let why = loop {
        match trickles.put(handle, PROMISED, sent, &[7; 10]) {
            Ok(()) => sent += 10,
            Err(why) => break why,
        }
        std::thread::yield_now();
    };
    assert!(why.1.contains("too slow"), "{why:?}");
    assert!((1..MIB as u64).contains(&sent), "{sent}");
    assert_eq!(rig.stats().upload_bytes, 0);
    // Half of a frame is no byte of a boot image, and ends nothing else.
    let mut half = Raw::connect(&rig, "half");
    let handle = half.open("one");
    half.put(handle, PROMISED, 0, &[7; PIECE]).unwrap();
    let stat = Frame::new(99, Message::Stat);
    let stat = half.sealed(&stat);
    half.stream.write_all(&stat[..20]).unwrap();
    until("it is given up", || rig.stats().upload_bytes == 0);
    half.stream.write_all(&stat[20..]).unwrap();
    assert_eq!(half.hear().unwrap().request, 99);
    others_go_on(&rig, "honest", 3 * MIB as u64);
}

/// Pieces of one byte take no more memory than what they bring, and a block.
#[test]
fn pieces_of_a_byte_take_no_more_than_a_block() {
    let (rig, _) = serving(Limits::default());
    let mut raw = Raw::connect(&rig, "attacker");
    let handle = raw.open("one");
    for offset in 0..500 {
        raw.put(handle, PROMISED, offset, &[7]).unwrap();
    }
    assert_eq!(rig.stats().upload_bytes, PIECE as u64);
}

/// Names that are only believed cost nothing: an address is one machine, however many it makes up.
#[test]
fn many_names_at_one_address_are_one_machine() {
    let mut rig = Rig::new();
    let sample = sample("one", 1, &*rig.store);
    rig.catalog.add(b"one", &sample.index).unwrap();
    let limits = Limits {
        memory_bytes: 8 * MIB as u64,
        ..Limits::default()
    };
    let service = rig.start_at_port(Access::open(), limits);
    let attackers: Vec<_> = (0..16)
        .map(|number| {
            let name = format!("attacker{number}");
            let mut raw = Raw::connect_from([127, 0, 0, 2], service, &name);
            let handle = raw.open("one");
            (raw.put_some(handle, PROMISED, 2 * PIECE), raw)
        })
        .collect();
    let sent: usize = attackers.iter().map(|(sent, _)| sent).sum();
    assert_eq!(sent, 4 * MIB);
    // More than any of these names has.
    let mut honest = Raw::connect_from([127, 0, 0, 3], service, "honest");
    let handle = honest.open("one");
    let total = 12 * PIECE as u64;
    assert_eq!(honest.put_some(handle, PROMISED, 12 * PIECE) as u64, total);
}

/// Boot images without end: they stay within what they may take, and nobody else's go for them.
#[test]
fn boot_images_of_one_machine_do_not_push_out_others() {
    let (rig, _) = serving(Limits::default());
    rig.catalog.limit_boots(4 * MIB as u64).unwrap();
    for (name, seed) in [("two", 2), ("three", 3), ("four", 4)] {
        let sample = sample(name, seed, &*rig.store);
        rig.catalog.add(name.as_bytes(), &sample.index).unwrap();
    }
    let (honest, attacker) = (rig.client("honest", None), rig.client("attacker", None));
    connected(&honest);
    connected(&attacker);
    let image = content(1, MIB as u64);
    let id = honest.keep_boot(b"one", &image).unwrap();
    let on_disk = || {
        let dir = rig.dir.path().join("catalog/boots");
        let sources = std::fs::read_dir(dir).unwrap();
        let files = sources.flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap());
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    let mut given = 0;
    for (seed, name) in (0..32).zip(["one", "two", "three", "four"].iter().cycle()) {
        let image = content(100 + seed, MIB as u64);
        attacker.keep_boot(name.as_bytes(), &image).unwrap();
        given += image.len() as u64;
        assert!(on_disk() <= 4 * MIB as u64, "{} of {given}", on_disk());
    }
    let boots = honest.boots(b"one").unwrap();
    let mine = boots.iter().find(|boot| boot.id == id);
    assert!(honest.boot(b"one", mine.unwrap()).unwrap() == image);
    // Longer than all of them may be together: that is said before a byte is taken.
    let refused = attacker.keep_boot(b"one", &content(7, 4 * MIB as u64 + 1));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("4194304 bytes here"), "{refused}");
}
