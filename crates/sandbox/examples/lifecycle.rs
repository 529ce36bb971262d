use sandbox::*;
use std::time::{Duration, Instant};
fn main() {
    let n: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let program = std::env::args().nth(2).unwrap();
    let dir = std::path::PathBuf::from("/run/sandbox-bench");
    let s = Sandboxes::open(Config::new(&dir, "sandbox-bench")).unwrap();
    s.add_base(&BaseSpec {
        name: "host".into(),
        root: std::env::args().nth(3).unwrap_or("/".into()).into(),
        hide: vec!["work".into()],
    })
    .unwrap();
    let mut all = vec![];
    let mut made = vec![];
    for _ in 0..n {
        let t = Instant::now();
        let b = s
            .create(Request::new("host", &[&program]), Stdio::Null)
            .unwrap();
        made.push(t.elapsed());
        b.wait(Duration::from_secs(60)).unwrap();
        all.push(t.elapsed());
    }
    all.sort();
    made.sort();
    println!(
        "whole p50 {:?} p99 {:?}; create p50 {:?}",
        all[n / 2],
        all[n * 99 / 100],
        made[n / 2]
    );
    s.end_all(Duration::from_secs(10)).unwrap();
}
