//! What a compiled module of Python imports when it is imported itself (`NAME.cpython-311.pyc`).
//!
//! A compiled module is a head of 16 bytes and one code object in the format of Python's `marshal`. Read are its
//! constants, its names and its instructions: those that import, outside of functions and classes. Instructions are
//! numbered anew by some releases. Of one whose numbers are not known, every name that the code uses counts:
//! most are no modules.

mod marshal;

use marshal::{Marshal, Value};

/// The longest compiled module that is read.
pub const MODULE_MAX: usize = 1 << 20;
/// Imports of one module.
const IMPORTS_MAX: usize = 255;
/// Names that one import takes out of a module.
const TAKEN_MAX: usize = 64;
const HEAD_BYTES: usize = 16;
/// What the magic number of each compiled module ends with.
const MAGIC_END: [u8; 2] = *b"\r\n";

const EXTENDED_ARG: u8 = 144;
const LOAD_CONST: u8 = 100;
const IMPORT_NAME: u8 = 108;
const IMPORT_FROM: u8 = 109;

/// One import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// The name of the module, with its packages, separated by dots; empty for the package itself.
    pub module: Vec<u8>,
    /// 0: from the directories of modules; 1: from the package of the module that imports, 2: from the one above, and so on.
    pub level: u32,
    /// What is taken out of it: modules, if it is a package, or anything else.
    pub taken: Vec<Vec<u8>>,
}

/// The releases whose compiled modules are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Release {
    /// Numbers of 32 bits before the instructions.
    numbers: usize,
    /// Whether the numbers of its instructions are known.
    is_known: bool,
}

impl Release {
    /// Returns the release with a magic number, from 3.8 on.
    const fn of(magic: u16) -> Option<Self> {
        let (numbers, is_known) = match magic {
            3400..3450 => (6, true),
            3450..3550 => (5, true),
            3550..4000 => (5, false),
            _ => return None,
        };
        Some(Self { numbers, is_known })
    }
}

/// Returns what a compiled module imports; `None` if it is not one, or not one that is understood.
#[must_use]
pub fn imports(bytes: &[u8]) -> Option<Vec<Import>> {
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    if bytes.len() > MODULE_MAX || head[2..4] != MAGIC_END {
        return None;
    }
    let release = Release::of(u16::from_le_bytes([head[0], head[1]]))?;
    let mut marshal = Marshal::new(body);
    marshal.begin_code(release.numbers)?;
    let Value::Bytes(code) = marshal.object()? else {
        return None;
    };
    let constants = marshal.tuple()?;
    let names = marshal.tuple()?;
    Some(match release.is_known {
        true => of_code(code, &constants, &names),
        false => of_names(&names),
    })
}

/// Returns what instructions import.
fn of_code(code: &[u8], constants: &[Value<'_>], names: &[Value<'_>]) -> Vec<Import> {
    let name = |at: usize| match names.get(at) {
        Some(Value::Bytes(name)) => Some(name.to_vec()),
        _ => None,
    };
    let mut imports: Vec<Import> = Vec::new();
    // The places of the last two constants that were loaded: the level, and what is taken.
    let mut loaded = (usize::MAX, usize::MAX);
    let mut extended = 0_usize;
    // What is taken belongs to the import before it, if there was one.
    let mut is_taken_from = false;
    for instruction in code.as_chunks::<2>().0 {
        let [number, argument] = *instruction;
        let argument = (extended << 8 | usize::from(argument)) & 0x00ff_ffff;
        extended = 0;
        match number {
            EXTENDED_ARG => extended = argument,
            LOAD_CONST => loaded = (loaded.1, argument),
            IMPORT_NAME => {
                let level = match constants.get(loaded.0) {
                    Some(Value::Number(level)) => u32::try_from(*level).unwrap_or(0),
                    _ => 0,
                };
                is_taken_from = imports.len() < IMPORTS_MAX;
                if let (true, Some(module)) = (is_taken_from, name(argument)) {
                    let taken = Vec::new();
                    imports.push(Import {
                        module,
                        level,
                        taken,
                    });
                }
            }
            IMPORT_FROM if is_taken_from => {
                if let (Some(import), Some(name)) = (imports.last_mut(), name(argument))
                    && import.taken.len() < TAKEN_MAX
                {
                    import.taken.push(name);
                }
            }
            _ => {}
        }
    }
    imports
}

fn of_names(names: &[Value<'_>]) -> Vec<Import> {
    let names = names.iter().filter_map(|name| match name {
        Value::Bytes(name) => Some(name.to_vec()),
        Value::Number(_) | Value::Other => None,
    });
    let imports = names.take(IMPORTS_MAX).map(|module| Import {
        module,
        ..Import::default()
    });
    imports.collect()
}

#[cfg(test)]
pub(crate) mod tests;
