//! Determines the media types of files from their names and contents.

use std::path::Path;

use mime_guess::Mime;
use toolgate_contract::ResourceContents;

/// File extensions that the media type registry lists as binary but that often belong to text
/// files. For example, `.ts` is registered as a video type, but usually means TypeScript.
const AMBIGUOUS_EXTENSIONS: [&str; 9] =
    ["ts", "mts", "mod", "m3u", "m3u8", "pls", "xbm", "xpm", "dump"];

/// Returns `bytes`, the content of the file `name`, as the content of the resource `uri`: text or
/// binary.
pub(crate) fn contents(uri: impl Into<String>, name: &str, bytes: Vec<u8>) -> ResourceContents {
    if !is_text(name, &bytes) {
        return ResourceContents::bytes(uri, media_type(name, false), bytes);
    }
    match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(uri, media_type(name, true), text),
        Err(err) => ResourceContents::bytes(uri, media_type(name, false), err.into_bytes()),
    }
}

/// Returns `true` if `bytes`, the content of the file `name`, are text: UTF-8 without NUL, and no
/// binary extension.
pub(crate) fn is_text(name: &str, bytes: &[u8]) -> bool {
    let could_be = guess_type(name).is_none_or(|guess| !is_binary(&guess) || is_ambiguous(name));
    could_be && memchr::memchr(0, bytes).is_none() && std::str::from_utf8(bytes).is_ok()
}

/// Returns the media type of the file `name`. `is_text` states whether its content is text.
pub(crate) fn media_type(name: &str, is_text: bool) -> String {
    match guess_type(name) {
        Some(guess) if !(is_text && is_binary(&guess)) => guess.essence_str().to_owned(),
        Some(_) | None if is_text => "text/plain".to_owned(),
        Some(_) | None => "application/octet-stream".to_owned(),
    }
}

/// Returns the media type of the file `name`. Returns `None` if the name alone does not determine
/// the media type.
pub(crate) fn media_type_by_name(name: &str) -> Option<String> {
    guess_type(name).filter(|_| !is_ambiguous(name)).map(|guess| guess.essence_str().to_owned())
}

fn guess_type(name: &str) -> Option<Mime> {
    mime_guess::from_path(name).first()
}

fn is_ambiguous(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| {
        AMBIGUOUS_EXTENSIONS.iter().any(|one| extension.eq_ignore_ascii_case(one))
    })
}

/// Returns `true` if a file of the media type `guess` is always binary.
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
    fn a_text_file_never_has_a_video_media_type() {
        assert_eq!(media_type("a.ts", true), "text/plain");
        assert_eq!(media_type("SKILL.md", true), "text/markdown");
        assert_eq!(media_type("a.png", false), "image/png");
        assert_eq!(media_type("Makefile", true), "text/plain");
        assert_eq!(media_type("a.bin", false), "application/octet-stream");
    }

    #[test]
    fn a_file_is_text_if_its_name_and_its_bytes_agree() {
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
