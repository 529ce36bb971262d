//! The program against the rules, by an interpreter of the few instructions that it has.

use oci_spec::runtime::LinuxSeccomp;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What the kernel would answer.
fn run(filter: &Filter, arch: u32, number: u32, args: [u64; 6]) -> Action {
    let mut data = [0_u32; 16];
    (data[0], data[1]) = (number, arch);
    for (place, arg) in args.iter().enumerate() {
        data[4 + 2 * place] = (arg & 0xffff_ffff) as u32;
        data[5 + 2 * place] = (arg >> 32) as u32;
    }
    let (mut at, mut register) = (0, 0);
    loop {
        let Instruction {
            code,
            jump_true,
            jump_false,
            operand,
        } = filter.instructions[at];
        at += 1;
        let mut jump = |holds: bool| {
            at += usize::from(if holds { jump_true } else { jump_false });
        };
        match code {
            0x20 => register = data[operand as usize / 4],
            0x54 => register &= operand,
            0x06 => return operand,
            0x15 => jump(register == operand),
            0x25 => jump(register > operand),
            0x35 => jump(register >= operand),
            0x05 => at += operand as usize,
            other => panic!("{other}"),
        }
    }
}

fn filter(value: serde_json::Value) -> Result<Filter, Reasons> {
    let seccomp: LinuxSeccomp = serde_json::from_value(value).unwrap();
    let mut reasons = Reasons::new();
    Filter::new(&seccomp, &mut reasons).ok_or(reasons)
}

const X86_64: u32 = 0xc000_003e;
const X86: u32 = 0x4000_0003;

#[test]
fn what_docker_asks_for_is_what_the_program_does() {
    let filter = filter(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            {"names": ["read", "write", "openat", "no_such_call"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 4294967295_u64, "op": "SCMP_CMP_EQ"}]},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 2114060288, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
        ],
    }))
    .unwrap();
    let none = [0; 6];
    let call = |arch: Arch, name: &str| {
        run(
            &filter,
            arch.audit_number(),
            arch.number(name).unwrap(),
            none,
        )
    };
    for arch in [Arch::X86_64, Arch::X32, Arch::X86] {
        assert_eq!(call(arch, "read"), ALLOW);
        assert_eq!(call(arch, "openat"), ALLOW);
        assert_eq!(call(arch, "close"), ERRNO | EPERM);
        assert_eq!(call(arch, "clone3"), ERRNO | ENOSYS);
        assert_eq!(call(arch, "personality"), ERRNO | EPERM);
        assert_eq!(call(arch, "clone"), ALLOW);
        assert_eq!(
            call(arch, "futex_waitv"),
            ERRNO | ENOSYS,
            "newer than what the rules know"
        );
    }
    let (personality, clone) = (135, 56);
    assert_eq!(run(&filter, X86_64, personality, [8, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(
        run(&filter, X86_64, personality, [0xffff_ffff, 0, 0, 0, 0, 0]),
        ALLOW
    );
    assert_eq!(
        run(&filter, X86_64, personality, [1 << 32 | 8, 0, 0, 0, 0, 0]),
        ERRNO | EPERM
    );
    assert_eq!(
        run(&filter, X86_64, clone, [0x1000_0000, 0, 0, 0, 0, 0]),
        ERRNO | EPERM
    );
    assert_eq!(
        run(&filter, 0xc000_00b7, 63, none),
        KILL_THREAD,
        "another processor"
    );
}

#[test]
fn x32_is_killed_unless_it_is_named() {
    let filter = filter(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["ptrace"], "action": "SCMP_ACT_KILL_PROCESS"}]}))
    .unwrap();
    assert_eq!(run(&filter, X86_64, 101, [0; 6]), 0x8000_0000);
    assert_eq!(run(&filter, X86_64, 0, [0; 6]), ALLOW);
    assert_eq!(run(&filter, X86_64, 5000, [0; 6]), ALLOW);
    assert_eq!(run(&filter, X86_64, 0x4000_0000, [0; 6]), KILL_THREAD);
    assert_eq!(run(&filter, X86, 3, [0; 6]), KILL_THREAD);
}

#[test]
fn what_cannot_be_said_is_refused() {
    let allow = "SCMP_ACT_ALLOW";
    let one =
        |call: serde_json::Value| json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [call]});
    let refused = [
        json!({"defaultAction": "SCMP_ACT_NOTIFY"}),
        json!({"defaultAction": allow, "architectures": ["SCMP_ARCH_S390X"]}),
        json!({"defaultAction": allow, "syscalls": [{"names": ["new_call"], "action": "SCMP_ACT_ERRNO"}]}),
        one(
            json!({"names": ["read"], "action": allow, "args": [{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]}),
        ),
        json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["read"], "action": allow, "args": [{"index": 1, "value": 0, "op": "SCMP_CMP_EQ"}]},
            {"names": ["read"], "action": "SCMP_ACT_KILL", "args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}]}]}),
        json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["read"], "action": allow, "args": [{"index": 0, "value": 7, "op": "SCMP_CMP_LE"}]},
            {"names": ["read"], "action": "SCMP_ACT_KILL", "args": [{"index": 0, "value": 7, "op": "SCMP_CMP_GE"}]}]}),
        json!({"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86"], "syscalls": [
            {"names": ["socket"], "action": allow}]}),
    ];
    for seccomp in refused {
        assert!(filter(seccomp.clone()).is_err(), "{seccomp}");
    }
}

/// What libseccomp makes of several rules about one call, as its `export_pfc` shows: podman's default filter has such.
#[test]
fn the_first_rule_without_conditions_decides_and_others_where_they_hold() {
    let (allow, errno) = ("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO");
    let equal =
        |index: u32, value: u64| json!({"index": index, "value": value, "op": "SCMP_CMP_EQ"});
    let not = |index: u32, value: u64| json!({"index": index, "value": value, "op": "SCMP_CMP_NE"});
    let filter = filter(json!({
        "defaultAction": errno, "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            {"names": ["setns", "socketcall", "openat"], "action": allow},
            {"names": ["setns"], "action": errno, "errnoRet": 1},
            {"names": ["bpf"], "action": errno, "errnoRet": 1},
            {"names": ["bpf"], "action": allow},
            {"names": ["openat"], "action": errno, "errnoRet": 2, "args": [equal(0, 3)]},
            {"names": ["close"], "action": errno, "errnoRet": 2, "args": [equal(0, 3)]},
            {"names": ["close"], "action": allow},
            {"names": ["socket"], "action": errno, "errnoRet": 22, "args": [equal(0, 16), equal(2, 9)]},
            {"names": ["socket"], "action": allow, "args": [not(2, 9)]},
            {"names": ["socket"], "action": allow, "args": [not(0, 16)]},
        ],
    }))
    .unwrap();
    let call = |arch: Arch, name: &str, args: [u64; 6]| {
        run(
            &filter,
            arch.audit_number(),
            arch.number(name).unwrap(),
            args,
        )
    };
    for arch in [Arch::X86_64, Arch::X32, Arch::X86] {
        assert_eq!(call(arch, "setns", [0; 6]), ALLOW);
        assert_eq!(call(arch, "bpf", [0; 6]), ERRNO | EPERM);
        assert_eq!(call(arch, "openat", [3, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(call(arch, "close", [3, 0, 0, 0, 0, 0]), ALLOW);
        let audit = call(arch, "socket", [16, 3, 9, 0, 0, 0]);
        assert_eq!(audit, ERRNO | 22);
        assert_eq!(call(arch, "socket", [16, 3, 0, 0, 0, 0]), ALLOW);
        assert_eq!(call(arch, "socket", [2, 3, 9, 0, 0, 0]), ALLOW);
    }
}

/// The rules of a filter as random tests make them, and what they mean.
#[derive(Clone, Debug)]
struct Condition {
    index: usize,
    value: u64,
    two: u64,
    operator: &'static str,
}

impl Condition {
    fn holds(&self, args: [u64; 6]) -> bool {
        let (arg, value) = (args[self.index], self.value);
        match self.operator {
            "SCMP_CMP_EQ" => arg == value,
            "SCMP_CMP_NE" => arg != value,
            "SCMP_CMP_LT" => arg < value,
            "SCMP_CMP_LE" => arg <= value,
            "SCMP_CMP_GT" => arg > value,
            "SCMP_CMP_GE" => arg >= value,
            _ => arg & value == self.two,
        }
    }
}

/// Values that differ in either half, or by one.
fn word() -> impl Strategy<Value = u64> {
    let half = || prop_oneof![Just(0_u64), Just(1), Just(2), Just(0xffff_ffff)];
    (half(), half()).prop_map(|(high, low)| high << 32 | low)
}

fn condition() -> impl Strategy<Value = Condition> {
    let operators = prop::sample::select(vec![
        "SCMP_CMP_EQ",
        "SCMP_CMP_NE",
        "SCMP_CMP_LT",
        "SCMP_CMP_LE",
        "SCMP_CMP_GT",
        "SCMP_CMP_GE",
        "SCMP_CMP_MASKED_EQ",
    ]);
    (0..6_usize, word(), word(), operators).prop_map(|(index, value, two, operator)| Condition {
        index,
        value,
        two,
        operator,
    })
}

proptest! {
    #[test]
    fn the_program_does_what_the_rules_say(
        rules in prop::collection::vec(
            (prop::sample::select(vec!["read", "write", "openat", "close", "bpf", "execve"]),
             prop::collection::vec(condition(), 0..4),
             prop::sample::select(vec![1, 2])),
            0..12,
        ),
        args in prop::array::uniform6(word()),
        asked in prop::sample::select(vec!["read", "write", "openat", "close", "bpf", "execve", "mmap"]),
    ) {
        let of_rules: Vec<_> = rules.iter().map(|(name, conditions, errno)| {
            let args: Vec<_> = conditions.iter().map(|at| json!({
                "index": at.index, "value": at.value, "valueTwo": at.two, "op": at.operator,
            })).collect();
            json!({"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args})
        }).collect();
        let number = Arch::NATIVE.number(asked).unwrap();
        let most = rules.iter().filter_map(|(name, ..)| Arch::NATIVE.number(name)).max();
        let of_call = || rules.iter().filter(|(name, ..)| *name == asked);
        let decided: std::collections::BTreeSet<u32> = match of_call().find(|(_, conditions, _)| conditions.is_empty()) {
            Some((.., errno)) => [*errno].into(),
            None => of_call().filter(|(_, conditions, _)| {
                let twice = conditions.iter().any(|at| {
                    conditions.iter().filter(|other| other.index == at.index).count() > 1
                });
                match twice {
                    true => conditions.iter().any(|at| at.holds(args)),
                    false => conditions.iter().all(|at| at.holds(args)),
                }
            }).map(|(.., errno)| *errno).collect(),
        };
        let made = filter(json!({
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 77, "syscalls": of_rules,
        }));
        // Where rules contradict each other for some arguments, the filter is refused whatever the arguments.
        let Ok(filter) = made else {
            let actions: std::collections::BTreeSet<_> = rules.iter().map(|(.., errno)| errno).collect();
            prop_assert!(actions.len() > 1);
            return Ok(());
        };
        prop_assert!(decided.len() <= 1);
        let expected = match (decided.first(), most) {
            (Some(errno), _) => ERRNO | errno,
            (None, Some(most)) if number > most => ERRNO | ENOSYS,
            (None, _) => ERRNO | 77,
        };
        prop_assert_eq!(run(&filter, Arch::NATIVE.audit_number(), number, args), expected);
    }
}
