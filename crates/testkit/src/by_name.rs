//! A test program without libtest, which starts two threads: what plays a part in these tests is the same program again,
//! and confines itself or blocks signals before it has a second thread.

/// A test and its name.
pub type Test = (&'static str, fn());

/// Names functions as tests for [`run`](crate::by_name::run).
#[macro_export]
macro_rules! named_tests {
    ($($test:ident),* $(,)?) => {
        &[$((stringify!($test), $test as fn())),*]
    };
}

/// Runs the tests that the arguments name by a part of their names, or all, one after the other. One that fails panics,
/// which ends the program with a failure.
pub fn run(tests: &[Test]) {
    let arguments = std::env::args().skip(1);
    let wanted: Vec<_> = arguments.filter(|word| !word.starts_with('-')).collect();
    for (name, test) in tests {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            println!("test {name} ...");
            test();
        }
    }
    println!("test result: ok");
}
