//! What one machine may take of the service, and what the service leaves undone when it is pressed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use blockservice::client::{Client, ClientError};
use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{ErrorCode, Priority};
use rig::{Rig, Sample, connected, content, sample, until};
use serving::load::{Level, Load};

const LONG: Duration = Duration::from_secs(20);

fn serving(limits: Limits) -> (Rig, Sample) {
    let mut rig = Rig::new();
    let sample = sample("one", 1, &*rig.store);
    rig.catalog.add(b"one", &sample.index).unwrap();
    rig.start(Access::open(), limits);
    (rig, sample)
}

#[test]
fn under_pressure_nothing_is_read_that_nobody_waits_for() {
    let load = Arc::new(Load::default());
    let limits = Limits {
        load: Arc::clone(&load),
        ..Limits::default()
    };
    let (rig, _) = serving(limits);
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    let fetch = |chunk: u32, priority| remote.fetch(chunk..chunk + 1, priority, LONG)[0].is_some();
    // Of the others, more may be sent than were asked for: the client asks again for what is late.
    let prefetched = || rig.metric(r#"answers_total{priority="prefetch",answer="sent"}"#);
    assert!(fetch(0, Priority::Prefetch));
    until("it is counted", || prefetched() >= 1);
    // The client remembers what it got: so it is asked for something else each time.
    for (level, chunk) in [(Level::Careful, 1), (Level::Shedding, 4)] {
        load.set(level, Some("a test".to_owned()));
        let before = (prefetched(), load.report().put_off);
        assert!(!fetch(chunk, Priority::Prefetch));
        assert_eq!(prefetched(), before.0);
        assert!(load.report().put_off > before.1);
        // What somebody waits for is here, and costs less than a refusal costs them.
        assert!(fetch(chunk, Priority::Demand) && fetch(chunk + 1, Priority::Readahead));
    }
    load.set(Level::Normal, None);
    // What was refused is left alone for a while.
    until("it is taken again", || fetch(7, Priority::Prefetch));
}

#[test]
fn boot_images_on_their_way_fit_into_the_memory() {
    let (rig, _) = serving(Limits {
        memory_bytes: 2 << 20, // half of it is for them
        ..Limits::default()
    });
    let client = rig.client("vm", None);
    connected(&client);
    let refused = client.keep_boot(b"one", &content(1, 2 << 20));
    assert!(
        matches!(
            &refused,
            Err(ClientError::Refused {
                code: ErrorCode::Busy,
                ..
            })
        ),
        "{refused:?}"
    );
    // What the refused one had taken is free again.
    client.keep_boot(b"one", &content(2, 900 << 10)).unwrap();
    client.keep_boot(b"one", &content(3, 900 << 10)).unwrap();
    let remote = client.open(b"one", None, |_| None).unwrap();
    assert!(remote.fetch(0..1, Priority::Demand, LONG)[0].is_some());
}

#[test]
fn one_machine_has_not_all_connections() {
    let (rig, _) = serving(Limits {
        connections_of_one: 2,
        ..Limits::default()
    });
    // A client has two.
    let client = rig.client("vm", None);
    connected(&client);
    until("both are there", || rig.stats().connections == 2);
    let more = rig.client("vm", None);
    until("its other connections are refused", || {
        rig.stats().refused >= 2
    });
    assert!(!more.is_there());
    let other = rig.client("another", None);
    connected(&other);
    drop((client, more));
    let again = rig.client("vm", None);
    connected(&again);
}

#[test]
fn a_machine_gets_no_more_in_a_second_than_it_may() {
    let (rig, sample) = serving(Limits {
        // Small answers are quick; a chunk takes a minute.
        send_rate_of_one: NonZeroU64::new(2000),
        ..Limits::default()
    });
    let index = Arc::new(sample.index);
    let open = |client: &Client| {
        connected(client);
        client
            .open(b"one", None, |_| Some(Arc::clone(&index)))
            .unwrap()
    };
    let (one, two) = (rig.client("one", None), rig.client("two", None));
    let remote = open(&one);
    // A hundred bytes, and then a whole chunk.
    assert!(remote.fetch(0..1, Priority::Demand, LONG)[0].is_some());
    assert_eq!(
        remote.fetch(1..2, Priority::Demand, Duration::from_secs(2)),
        [None]
    );
    assert!(rig.stats().chunks >= 2, "it was there");
    // Another machine has a budget of its own.
    assert!(open(&two).fetch(0..1, Priority::Demand, LONG)[0].is_some());
}
