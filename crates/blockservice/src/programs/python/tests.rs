//! Modules that Python compiled, modules made here, and hostile ones.

use super::*;

/// A module that Python 3.11 compiled:
///
/// ```python
/// import os.path
/// import json, ssl as tls
/// from . import events, tasks
/// from .futures import *
/// from ..up import thing
/// try:
///     import _ssl
/// except ImportError:
///     pass
/// def lazy():
///     import late
/// class C:
///     import in_class
/// X = {"a": 1, "b": (1.5, 2j, 10**30, b"x", frozenset({1, 2}), None, True, ...)}
/// ```
const COMPILED: &str = include_str!("../../../tests/fixtures/module-3.11.txt");

fn compiled() -> Vec<u8> {
    let digits = COMPILED.trim().as_bytes().chunks(2);
    let byte = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

fn import(module: &str, level: u32, taken: &[&str]) -> Import {
    Import {
        module: module.as_bytes().to_vec(),
        level,
        taken: taken.iter().map(|name| name.as_bytes().to_vec()).collect(),
    }
}

/// Writes a compiled module of a release that takes names out of modules.
pub(crate) fn module(magic: u16, imports: &[Import]) -> Vec<u8> {
    let numbers = Release::of(magic).map_or(5, |release| release.numbers);
    let (mut code, mut names) = (Vec::new(), Vec::new());
    let mut constants = vec![b'N'];
    for (at, import) in imports.iter().enumerate() {
        constants.push(b'i');
        constants.extend(import.level.to_le_bytes());
        let at = u8::try_from(at + 1).unwrap();
        code.extend([LOAD_CONST, at, LOAD_CONST, 0, IMPORT_NAME]);
        code.push(u8::try_from(names.len()).unwrap());
        names.push(&import.module);
        for name in &import.taken {
            code.extend([IMPORT_FROM, u8::try_from(names.len()).unwrap()]);
            names.push(name);
        }
    }
    let mut out = magic.to_le_bytes().to_vec();
    out.extend(b"\r\n");
    out.extend([0; 12]);
    out.push(b'c' | 0x80);
    out.extend(vec![0; numbers * 4]);
    out.push(b's');
    out.extend(u32::try_from(code.len()).unwrap().to_le_bytes());
    out.extend(&code);
    out.extend([b')', u8::try_from(imports.len() + 1).unwrap()]);
    out.extend(&constants);
    out.extend([b')', u8::try_from(names.len()).unwrap()]);
    for name in names {
        out.extend([b'z', u8::try_from(name.len()).unwrap()]);
        out.extend(name);
    }
    out
}

#[test]
fn what_a_module_imports_is_read_without_that_of_its_functions() {
    let imports = imports(&compiled()).unwrap();
    let expected = [
        import("os.path", 0, &[]),
        import("json", 0, &[]),
        import("ssl", 0, &[]),
        import("", 1, &["events", "tasks"]),
        import("futures", 1, &[]),
        import("up", 2, &["thing"]),
        import("_ssl", 0, &[]),
    ];
    assert_eq!(imports, expected);
}

#[test]
fn other_releases_are_read_as_far_as_they_are_known() {
    let expected = [import("ssl", 0, &["a", "b"]), import("x", 1, &[])];
    for magic in [3413, 3425, 3439, 3495, 3531] {
        let imports = imports(&module(magic, &expected)).unwrap();
        assert_eq!(imports, expected, "{magic}");
    }
    // Whatever the code uses may be a module.
    let names = ["ssl", "a", "b", "x"].map(|name| import(name, 0, &[]));
    assert_eq!(imports(&module(3571, &expected)).unwrap(), names);
    for magic in [0, 3394, 20121, u16::MAX] {
        assert_eq!(imports(&module(magic, &expected)), None, "{magic}");
    }
}

/// The head of a module of 3.11, with what follows the numbers of its code object.
fn with(body: &[u8]) -> Vec<u8> {
    let mut out = module(3495, &[]);
    out.truncate(16 + 1 + 20);
    out.extend(body);
    out
}

#[test]
fn hostile_modules_end_the_reading() {
    let ok = [b's', 0, 0, 0, 0, b')', 0, b')', 0];
    assert_eq!(imports(&with(&ok)), Some(Vec::new()));
    let deep = |kind: &[u8]| {
        let mut body = vec![b's', 0, 0, 0, 0, b')', 1];
        body.extend(kind.repeat(100_000 / kind.len()));
        body
    };
    let nested_code = [&b"c"[..], &[0; 20]].concat();
    let hostile: [&[u8]; 14] = [
        &[],
        b"s\xff\xff\xff\x7f",
        b"s\xff\xff\xff\xff",
        b"s\0\0\0\0(\xff\xff\xff\x7f",
        b"s\0\0\0\0(\xff\xff\xff\xff",
        b"s\0\0\0\0)\x01(\xff\xff\xff\x7fN",
        b"s\0\0\0\0)\x01l\0\0\0\x80",
        b"s\0\0\0\0)\x01r\x09\0\0\0",
        b"s\0\0\0\0)\x01r\xff\xff\xff\xff",
        b"s\0\0\0\0)\x010",
        b"N)\0)\0",
        &deep(&[b')', 1]),
        &deep(b"{"),
        &deep(&nested_code),
    ];
    for body in hostile {
        let start = &body[..body.len().min(20)];
        assert_eq!(imports(&with(body)), None, "{start:?}");
    }
    // More objects that others refer to than are kept.
    let many = [&b"s\0\0\0\0(\0\0\x02\0"[..], &[b'N' | 0x80; 1 << 17]].concat();
    assert_eq!(imports(&with(&many)), None);
    let long = vec![0; MODULE_MAX + 1];
    assert_eq!(imports(&long), None);
}

#[test]
fn damaged_modules_cost_nothing_but_their_links() {
    let compiled = compiled();
    for at in 0..compiled.len() {
        for bit in 0..8 {
            let mut damaged = compiled.clone();
            damaged[at] ^= 1 << bit;
            let imports = imports(&damaged).unwrap_or_default();
            assert!(imports.len() <= compiled.len(), "{at}");
        }
        let _either = imports(&compiled[..at]);
    }
}

#[test]
fn numbers_of_imports_have_limits() {
    let one = [LOAD_CONST, 0, LOAD_CONST, 0, IMPORT_NAME, 0];
    let code = one.repeat(1000);
    let mut body = vec![b's'];
    body.extend(u32::try_from(code.len()).unwrap().to_le_bytes());
    body.extend(code);
    // The level is no number here.
    body.extend(b")\x01N)\x01z\x01a");
    assert_eq!(imports(&with(&body)).unwrap().len(), IMPORTS_MAX);
    // What is taken from one that is beyond the limit belongs to none; names that do not exist are none.
    let code = [
        &[IMPORT_FROM, 0, IMPORT_NAME, 9][..],
        &[IMPORT_FROM, 0].repeat(1000),
    ]
    .concat();
    let mut body = vec![b's'];
    body.extend(u32::try_from(code.len()).unwrap().to_le_bytes());
    body.extend(code);
    body.extend(b")\x01N)\x01z\x01a");
    assert_eq!(imports(&with(&body)).unwrap(), []);
}
