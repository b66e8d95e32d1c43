//! The page that tells what was measured, and how.

/// `docs/reference/search-quality.md` around `tables`.
pub fn of(tables: &str) -> String {
    format!("{HEAD}\n{}\n", tables.trim_end())
}

const HEAD: &str = "\
# How well search ranks

<!-- Written by `cargo xtask eval-search`. -->

A question is the first sentence of a function's doc comment, and that function is its only right
answer among all functions of its package. All doc comments, docstrings and comments are gone from
what is searched. The packages are well-known crates and Python wheels, fetched by name and version
and checked by their sums ([packages.toml](../../tests/search-eval/packages.toml), which says how
they were split); nobody tuned anything on those reported here. Functions are found by tree-sitter,
tests and vendored code left out.

A question is kept if it is a sentence of 5 to 40 words in ASCII that no other function of the
package says, if its function has at least 4 lines and nobody else's body, and if its name says
something. At most 80 of a package are asked, chosen by hash; 150 of the nine that vectors are
measured on. Its *overlap* is the share of the words of the function's name that it has; below 0.34
names do not help.

- *ripgrep*: its own binary, any word of the question, a function a file; most different words first,
  then most hits.
- *BM25*: `\\w+` in small letters over the whole function.
- *BM25 with symbol and path*: identifiers taken apart, stop words left out, endings cut by Snowball's
  English stemmer, the name three times, the path once; k1 1.5, b 0.75, the best of five pairs on the
  packages to tune on.
- *MiniLM*: all-MiniLM-L6-v2 over the function as it stands, 128 tokens, by cosine.
- *convex .5/.5 of both*: BM25 with symbol and path and MiniLM, each from its least to its most.
- *ours*: through the index that serves the tools, one chunk a function; *words* is BM25 over fields,
  *static* the built-in vectors of words, *rerank* the closer look.

MRR@10 is the mean of one over the right answer's place, 0 beyond the tenth; ± is half of what 95 of
100 bootstrap samples of the questions span. Equal scores share their middle place.
";
