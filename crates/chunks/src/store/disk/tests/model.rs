//! Random operations beside a naive account of what must and what may be there.

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Put(u64, Class),
    Get(u64),
    Pin(u64),
    Unpin(u64),
    Gc,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let class = prop_oneof![Just(Class::Demand), Just(Class::Prefetch)];
    prop_oneof![
        8 => (0..24u64, class).prop_map(|(number, class)| Op::Put(number, class)),
        6 => (0..24u64).prop_map(Op::Get),
        1 => (0..24u64).prop_map(Op::Pin),
        2 => (0..24u64).prop_map(Op::Unpin),
        1 => Just(Op::Gc),
        1 => Just(Op::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_never_lies_and_keeps_what_is_pinned(ops in prop::collection::vec(op(), 1..80)) {
        let (dir, mut store) = fresh();
        let mut pins: HashMap<u64, u32> = HashMap::new();
        let mut ever = Vec::new();
        for op in ops {
            match op {
                Op::Put(number, class) => match store.put(&id(number), &chunk(number), class) {
                    Ok(_) => {
                        prop_assert!(has(&store, number));
                        ever.push(number);
                    }
                    Err(PutError::Full) => prop_assert!(!pins.is_empty(), "nothing is pinned"),
                    Err(other) => prop_assert!(false, "{}", other),
                },
                Op::Get(number) => prop_assert!(!has(&store, number) || ever.contains(&number)),
                Op::Pin(number) => {
                    store.pin(&[id(number)]);
                    *pins.entry(number).or_default() += 1;
                }
                Op::Unpin(number) => {
                    store.unpin(&[id(number)]);
                    if let Some(count) = pins.get_mut(&number) {
                        *count -= 1;
                    }
                    pins.retain(|_, count| *count > 0);
                }
                Op::Gc => drop(store.gc().unwrap()),
                Op::Reopen => {
                    pins.clear();
                    store = reopen(&dir, store);
                }
            }
            let held: Vec<u64> = pins.keys().copied().filter(|n| store.contains(&id(*n))).collect();
            prop_assert_eq!(store.stats().pinned, held.len() as u64);
            prop_assert!(held.iter().all(|number| has(&store, *number)));
            check_budget(&store);
        }
        prop_assert_eq!(store.stats().damaged, 0);
    }
}
