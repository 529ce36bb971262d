//! Handlers in real sandboxes: ready, busy, late, dead, and evicted.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandbox::{BaseSpec, Config, Phase, Sandboxes, ZygoteSpec};
use sandbox_handlers::{Budget, CallError, HandlerSpec, Handlers, Runtime};
use sandbox_packages::Store;

const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    handlers: Option<Handlers>,
    sandboxes: Arc<Sandboxes>,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new(budget: Budget) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (number, pid) = (NEXT.fetch_add(1, Relaxed), std::process::id());
        let dir = tempfile::tempdir().unwrap();
        let group = format!("sandbox-handlers-test/{pid}-{number}");
        let mut config = Config::new(dir.path().join("run"), &group);
        config.first_uid += 0x600_0000 + (pid % 30_000) * 0x400 + number * 0x40;
        config.sandboxes_max = 0x20;
        let sandboxes = Arc::new(Sandboxes::open(config).unwrap());
        let base = BaseSpec {
            name: "host".to_owned(),
            root: "/".into(),
            hide: vec!["work".to_owned()],
        };
        sandboxes.add_base(&base).unwrap();
        let store = Arc::new(Store::open(dir.path().join("store")).unwrap());
        let handlers = Handlers::new(Arc::clone(&sandboxes), store, budget).unwrap();
        Self {
            handlers: Some(handlers),
            sandboxes,
            dir,
        }
    }

    fn handlers(&self) -> &Handlers {
        self.handlers.as_ref().unwrap()
    }

    fn code(&self, name: &str, file: &str, text: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.join(file), text).unwrap();
        dir
    }

    fn python(&self, name: &str, text: &str) -> HandlerSpec {
        HandlerSpec::python(name, "host", self.code(name, "handler.py", text))
    }

    fn call(&self, name: &str, event: &str) -> Result<String, CallError> {
        let answer = self.handlers().call(name, event.as_bytes());
        answer.map(|answer| String::from_utf8(answer).unwrap())
    }

    fn live(&self) -> usize {
        let all = self.sandboxes.list();
        let live = all
            .iter()
            .filter(|one| !matches!(one.phase(), Phase::Ended(_)));
        live.count()
    }

    fn until(&self, what: &str, is: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is() {
            assert!(
                Instant::now() < deadline,
                "{what}: {:?}",
                self.handlers().counts()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.handlers = None;
        self.sandboxes.end_all(PATIENCE).unwrap();
    }
}

#[test]
fn a_handler_stays_for_its_next_request() {
    let rig = Rig::new(Budget {
        freeze_after: Duration::from_millis(1),
        ..Budget::default()
    });
    let text = "
COUNT = 0
def handle(event):
    global COUNT
    COUNT += 1
    if event == 'raise': raise ValueError('on purpose')
    if event == 'exit': __import__('os')._exit(7)
    if event == 'odd': return {1, 2}
    return {'count': COUNT, 'event': event}
";
    rig.sandboxes
        .add_zygote(ZygoteSpec::new(
            "host",
            "/usr/bin/python3",
            &["json", "traceback"],
        ))
        .unwrap();
    let spec = rig.python("counts", text);
    rig.handlers().add(spec.clone()).unwrap();
    rig.handlers().add(spec.clone()).unwrap();
    let other = HandlerSpec {
        queue_max: 1,
        ..spec
    };
    assert!(matches!(
        rig.handlers().add(other),
        Err(CallError::Exists(_))
    ));
    assert_eq!(
        rig.call("counts", "[1]").unwrap(),
        r#"{"count":1,"event":[1]}"#
    );
    let frozen = || {
        rig.sandboxes
            .list()
            .iter()
            .any(|one| one.phase() == Phase::Paused)
    };
    rig.until("it is frozen", frozen);
    assert_eq!(
        rig.call("counts", "\"é\"").unwrap(),
        r#"{"count":2,"event":"é"}"#
    );
    for event in ["\"raise\"", "\"odd\""] {
        let error = rig.call("counts", event).unwrap_err();
        assert!(
            matches!(&error, CallError::Failed { said, .. } if said.contains("Error")),
            "{error}"
        );
    }
    assert_eq!(rig.call("counts", "0").unwrap(), r#"{"count":5,"event":0}"#);
    let error = rig.call("counts", "\"exit\"").unwrap_err().to_string();
    assert!(error.contains("Code(7)"), "{error}");
    // A new one, without what the one before had kept.
    assert_eq!(rig.call("counts", "0").unwrap(), r#"{"count":1,"event":0}"#);
    assert!(matches!(
        rig.call("counts", "no JSON"),
        Err(CallError::Invalid(_))
    ));
    assert!(matches!(rig.call("other", "0"), Err(CallError::Unknown(_))));
    let counts = rig.handlers().counts();
    assert_eq!(
        (counts.starts, counts.hits, counts.failed),
        (2, 4, 3),
        "{counts:?}"
    );
    assert_eq!(rig.sandboxes.zygote_counts().fresh, 0);
    rig.handlers().remove("counts").unwrap();
    rig.until("its sandbox ends", || rig.live() == 0);
    assert!(matches!(
        rig.call("counts", "0"),
        Err(CallError::Unknown(_))
    ));
}

#[test]
fn a_handler_that_cannot_be_loaded_says_why() {
    let rig = Rig::new(Budget::default());
    let spec = rig.python("broken", "import nothing_of_this_name");
    rig.handlers().add(spec).unwrap();
    let error = rig.call("broken", "0").unwrap_err().to_string();
    assert!(error.contains("ModuleNotFoundError"), "{error}");
    let mut spec = rig.python("needy", "");
    spec.requires = vec!["cake".to_owned()];
    rig.handlers().add(spec).unwrap();
    assert!(matches!(
        rig.call("needy", "0"),
        Err(CallError::Packages { .. })
    ));
    rig.until("nothing of them stays", || rig.live() == 0);
}

#[test]
fn more_than_may_wait_are_refused_and_who_is_late_is_ended() {
    let rig = Rig::new(Budget::default());
    let mut spec = rig.python(
        "waits",
        "
import time
def handle(event):
    time.sleep(event)
    return event
",
    );
    spec.instances_max = 2;
    spec.queue_max = 1;
    spec.timeout_ms = 1500;
    rig.handlers().add(spec).unwrap();
    std::thread::scope(|scope| {
        let long = [(); 2].map(|()| scope.spawn(|| rig.call("waits", "1000")));
        rig.until("both have a sandbox", || rig.handlers().list()[0].live == 2);
        let waits = scope.spawn(|| rig.call("waits", "0"));
        rig.until("one waits", || rig.handlers().list()[0].waiting == 1);
        assert!(matches!(rig.call("waits", "0"), Err(CallError::Busy(_))));
        for call in long {
            assert!(matches!(call.join().unwrap(), Err(CallError::Late { .. })));
        }
        // In the place of one that was ended, or too late by itself.
        let waited = waits.join().unwrap();
        assert!(
            matches!(waited, Ok(_) | Err(CallError::Late { .. })),
            "{waited:?}"
        );
    });
    rig.until("they end", || rig.live() <= 1);
    assert_eq!(rig.call("waits", "0").unwrap(), "0");
    let counts = rig.handlers().counts();
    assert_eq!(counts.busy, 1);
    assert!(counts.late >= 2);
}

#[test]
fn what_is_kept_stays_within_the_budget() {
    let budget = Budget {
        freeze_after: Duration::ZERO,
        memory_bytes: 1 << 20,
        ..Budget::default()
    };
    let rig = Rig::new(budget);
    rig.sandboxes
        .add_zygote(ZygoteSpec::new("host", "/usr/bin/python3", &["json"]))
        .unwrap();
    for name in ["one", "two"] {
        let spec = rig.python(
            name,
            "X = b'x' * (4 << 20)\ndef handle(event): return len(X)",
        );
        rig.handlers().add(spec).unwrap();
        assert_eq!(rig.call(name, "0").unwrap(), "4194304");
    }
    rig.until("all is evicted", || {
        let counts = rig.handlers().counts();
        (counts.evicted_instances, counts.evicted_zygotes) == (2, 1)
    });
    assert!(rig.sandboxes.zygotes().is_empty());
    rig.until("they end", || rig.live() == 0);
    assert_eq!(rig.call("one", "0").unwrap(), "4194304");
}

#[test]
fn node_is_started_before_anybody_asks() {
    let rig = Rig::new(Budget::default());
    let text = "let count = 0;
exports.handle = async (event) => {
  if (event === 'throw') throw new Error('on purpose');
  count += 1;
  return { count, event, files: require('fs').readdirSync('/code') };
};";
    let code = rig.code("js", "handler.js", text);
    let spec = HandlerSpec {
        runtime: Runtime::Node,
        interpreter: "/usr/bin/node".to_owned(),
        ..HandlerSpec::python("js", "host", code)
    };
    rig.handlers().add(spec).unwrap();
    rig.until("one is ready", || rig.handlers().counts().spares_ready == 1);
    let answer = rig.call("js", "\"é\"").unwrap();
    assert_eq!(answer, r#"{"count":1,"event":"é","files":["handler.js"]}"#);
    assert!(matches!(
        rig.call("js", "\"throw\""),
        Err(CallError::Failed { .. })
    ));
    assert!(rig.call("js", "1").unwrap().starts_with(r#"{"count":2"#));
    let counts = rig.handlers().counts();
    assert_eq!((counts.starts, counts.spares, counts.hits), (1, 1, 2));
    rig.until("the next one is ready", || rig.live() == 2);
    rig.handlers().remove("js").unwrap();
    rig.until("all end", || rig.live() == 0);
}

/// What a handler imports is imported by the next Zygote of its packages, so that the next handler finds it.
#[test]
fn what_handlers_import_is_there_for_the_next_one() {
    let rig = Rig::new(Budget::default());
    let text = "
import sys
BEFORE = sorted({'wave', 'xml.dom.minidom', 'own'} & set(sys.modules))
import own, wave
from xml.dom import minidom
def handle(event):
    return BEFORE
";
    for name in ["a", "b", "c"] {
        let spec = rig.python(name, text);
        fs::write(spec.code.join("own.py"), "").unwrap();
        rig.handlers().add(spec).unwrap();
    }
    assert_eq!(rig.call("a", "1").unwrap(), "[]");
    for name in ["b", "c"] {
        assert_eq!(
            rig.call(name, "1").unwrap(),
            r#"["wave","xml.dom.minidom"]"#
        );
    }
    assert_eq!(rig.sandboxes.zygote_counts().made, 1);
    // Two that import less: the first still finds more, and the second does not.
    for (name, found) in [("d", "true"), ("e", "false")] {
        let text = "import sys\ndef handle(event): return 'wave' in sys.modules";
        rig.handlers().add(rig.python(name, text)).unwrap();
        assert_eq!(rig.call(name, "1").unwrap(), found);
    }
}
