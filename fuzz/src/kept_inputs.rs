//! Test that runs the fuzzing inputs kept with the code. Each crate with fuzz targets includes this
//! file in its tests, so that known inputs are tested at every change, without libFuzzer.
#![allow(clippy::disallowed_methods, reason = "a test reads its inputs from the checkout")]

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

#[test]
fn every_kept_fuzz_input_passes_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in super::TARGETS {
        let folder = corpus.join(name);
        let inputs = fs::read_dir(&folder)
            .unwrap_or_else(|err| panic!("the target `{name}` needs {}: {err}", folder.display()));
        let mut tried = 0;
        for input in inputs {
            let path = input.expect("an entry of the corpus").path();
            let bytes = fs::read(&path).expect("an input of the corpus");
            let outcome = catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "the target `{name}` fails on {}", path.display());
            tried += 1;
        }
        assert!(tried > 0, "{} has no input", folder.display());
    }
}
