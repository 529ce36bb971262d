//! A program that makes sandboxes until it is killed, and says what it has made.
//!
//! Its arguments are a directory, a control group, the first user, and the name and the subnet of a bridge, if there is to be one. A line is written when a sandbox
//! runs that is to go on, and before one is ended.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write as _;
use std::path::Path;

use sandbox::{BaseSpec, BridgeConfig, Config, Neighbours, Network, Request, Sandboxes, Stdio};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut config = Config::new(Path::new(&arguments[1]), &arguments[2]);
    config.first_uid = arguments[3].parse().unwrap();
    let has_bridge = arguments.len() > 4;
    config.bridge = has_bridge.then(|| BridgeConfig {
        name: arguments[4].clone(),
        subnet: arguments[5].parse().unwrap(),
        neighbours: Neighbours::Apart,
    });
    let sandboxes = Sandboxes::open(config).unwrap();
    let base = BaseSpec {
        name: "host".to_owned(),
        root: "/".into(),
        hide: vec!["work".to_owned()],
    };
    sandboxes.add_base(&base).unwrap();
    let mut out = std::io::stdout().lock();
    let mut say = |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
    say("ready".to_owned());
    for round in 0.. {
        let short = Request::new("host", &["/bin/true"]);
        sandboxes.create(short, Stdio::Null).unwrap();
        let mut long = Request::new("host", &["/bin/sleep", "1000"]);
        // Few enough for the subnet: the one that is killed below is on the bridge, too.
        match round % 8 {
            1 | 5 => long.network = Network::Host,
            0 | 2 if has_bridge && round < 200 => long.network = Network::Veth,
            _ => {}
        }
        let stdio = if round % 3 == 0 {
            Stdio::Captured
        } else {
            Stdio::Null
        };
        let sandbox = sandboxes.create(long, stdio).unwrap();
        say(format!("runs {}", sandbox.id()));
        match round % 4 {
            1 => sandbox.pause().unwrap(),
            2 => {
                say(format!("ends {}", sandbox.id()));
                sandbox.kill().unwrap();
            }
            _ => {}
        }
    }
}
