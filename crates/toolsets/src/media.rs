//! What a file is, by its name and by whether it is text.

use std::path::Path;

use mime_guess::Mime;
use toolgate_contract::Contents;

/// What is no text by its name, to the registry of types alone: `.ts` is a video there, and
/// TypeScript to everybody else.
const TEXT_OR_NOT: [&str; 9] = ["ts", "mts", "mod", "m3u", "m3u8", "pls", "xbm", "xpm", "dump"];

/// What a file called `name` that holds `bytes` is, read by `uri`.
pub(crate) fn contents(uri: impl Into<String>, name: &str, bytes: Vec<u8>) -> Contents {
    if !is_text(name, &bytes) {
        return Contents::bytes(uri, type_of(name, false), bytes);
    }
    match String::from_utf8(bytes) {
        Ok(text) => Contents::text(uri, type_of(name, true), text),
        Err(err) => Contents::bytes(uri, type_of(name, false), err.into_bytes()),
    }
}

/// Whether `bytes`, of a file called `name`, are text: they could be by their name, and are UTF-8
/// without a NUL.
pub(crate) fn is_text(name: &str, bytes: &[u8]) -> bool {
    let could_be = guess(name).is_none_or(|guess| !is_binary(&guess) || is_either(name));
    could_be && memchr::memchr(0, bytes).is_none() && std::str::from_utf8(bytes).is_ok()
}

/// The media type of a file called `name`.
pub(crate) fn type_of(name: &str, is_text: bool) -> String {
    match guess(name) {
        Some(guess) if !(is_text && is_binary(&guess)) => guess.essence_str().to_owned(),
        Some(_) | None if is_text => "text/plain".to_owned(),
        Some(_) | None => "application/octet-stream".to_owned(),
    }
}

/// The media type of a file called `name`, as far as a name tells; of some it is told once they
/// are read.
pub(crate) fn by_name(name: &str) -> Option<String> {
    guess(name).filter(|_| !is_either(name)).map(|guess| guess.essence_str().to_owned())
}

fn guess(name: &str) -> Option<Mime> {
    mime_guess::from_path(name).first()
}

fn is_either(name: &str) -> bool {
    let end = Path::new(name).extension().and_then(|end| end.to_str());
    end.is_some_and(|end| TEXT_OR_NOT.iter().any(|one| end.eq_ignore_ascii_case(one)))
}

/// Whether what is of this type is no text, whatever its bytes are.
fn is_binary(guess: &Mime) -> bool {
    match guess.type_().as_str() {
        "image" | "audio" | "video" | "font" => guess.suffix().is_none_or(|it| it != "xml"),
        "application" => matches!(
            guess.subtype().as_str(),
            "octet-stream" | "pdf" | "zip" | "gzip" | "x-tar" | "java-archive" | "wasm"
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_called_a_video() {
        assert_eq!(type_of("a.ts", true), "text/plain");
        assert_eq!(type_of("SKILL.md", true), "text/markdown");
        assert_eq!(type_of("a.png", false), "image/png");
        assert_eq!(type_of("Makefile", true), "text/plain");
        assert_eq!(type_of("a.bin", false), "application/octet-stream");
    }

    #[test]
    fn what_is_text_says_so_by_its_name_and_its_bytes() {
        let texts = "a.json a.xml a.js a.mjs a.toml a.yaml a.svg a.sh a.sql a.php a.tex a.ts go.mod \
                     a.M3U8 a.xhtml Makefile a.unknown a.rs a.ipynb .env a.dump";
        for name in texts.split(' ') {
            assert!(is_text(name, "é".as_bytes()), "{name}");
            assert!(!is_text(name, b"a\0"), "{name}");
            assert!(!is_text(name, b"\xff"), "{name}");
        }
        for name in "a.png a.JPG a.mp3 a.mp4 a.bin a.dat a.exe a.zip a.pdf a.wasm a.gz".split(' ') {
            assert!(!is_text(name, b"text"), "{name}");
        }
    }
}
