//! Tests of the object store client with a small S3 service that keeps objects in memory.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

use super::*;

/// Contents of the objects in the S3 service, by path.
type StoredObjects = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// Starts an S3 service that accepts the access key `AKIDTEST`, and returns its URL and its
/// objects. The first request to an object whose name contains `busy` fails.
fn service() -> (String, StoredObjects) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let objects = StoredObjects::default();
    let served = objects.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &served);
        }
    });
    (format!("http://{address}"), objects)
}

/// Answers one request on `stream`.
fn answer(mut stream: TcpStream, objects: &StoredObjects) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let header = |name: &str| {
        let pairs = head.iter().filter_map(|line| line.split_once(": "));
        let mut found = pairs.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = head[0].split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').expect("the URL is signed");
    let is_known = query.contains("X-Amz-Credential=AKIDTEST%2F");
    let path = path.to_owned();
    let mut objects = objects.lock().unwrap();
    let (status, body) = if !is_known {
        ("403 Forbidden", b"<Error><Code>InvalidAccessKeyId</Code></Error>".to_vec())
    } else if path.contains("busy") && objects.insert("busy".to_owned(), vec![]).is_none() {
        ("503 Service Unavailable", Vec::new())
    } else {
        match method {
            "PUT" => {
                objects.insert(path, body);
                ("200 OK", Vec::new())
            }
            "DELETE" => {
                objects.remove(&path);
                ("200 OK", Vec::new())
            }
            _ => match objects.get(&path) {
                Some(body) => ("200 OK", body.clone()),
                None => ("404 Not Found", Vec::new()),
            },
        }
    };
    let head =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    // The client may have gone.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

fn bucket(endpoint: &str, id: &str) -> FileBucketClient {
    let place = BucketLocation::parse("s3://files/prefix", Some(endpoint), "eu-test-1").unwrap();
    FileBucketClient::new(place, Credentials::new(id, "very-secret"))
}

fn file(content: &[u8]) -> Arc<File> {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(content, 0).unwrap();
    Arc::new(file)
}

#[test]
fn a_request_has_the_signature_that_the_service_computes() {
    // The expected value comes from another implementation, which SeaweedFS 4.48 accepted.
    let endpoint = Some("http://s3.example:9000/");
    let place = BucketLocation::parse("s3://bucket/prefix/", endpoint, "eu-test-1").unwrap();
    let key = Credentials::new_with_token("AKIDTEST", "very-secret", "a-token");
    let bucket = FileBucketClient::new(place, key);
    let object = bucket.object_name("ab12", 0);
    let now = Timestamp::from_second(1_795_916_753).unwrap();
    let request = bucket.sign(Method::Put, &object, "text".into(), &now).unwrap();
    assert_eq!(request.method().as_str(), "PUT");
    assert_eq!(
        request.uri().to_string(),
        "http://s3.example:9000/bucket/prefix/ab12/0?X-Amz-Algorithm=AWS4-HMAC-SHA256\
         &X-Amz-Credential=AKIDTEST%2F20261129%2Feu-test-1%2Fs3%2Faws4_request\
         &X-Amz-Date=20261129T014553Z&X-Amz-Expires=900&X-Amz-Security-Token=a-token\
         &X-Amz-SignedHeaders=host\
         &X-Amz-Signature=55fc9f54f8ba2dda68acd9ce9a6c555660e75010ab937ea00142fa562cbac4b3"
    );
    assert!(!format!("{bucket:?}").contains("very"));
}

#[tokio::test]
async fn a_file_is_stored_in_several_objects_until_it_is_removed() {
    let (endpoint, objects) = service();
    let bucket = bucket(&endpoint, "AKIDTEST");
    let content: Vec<u8> = (0..=250).cycle().take(OBJECT_BYTES_MAX + 5).collect();
    let bytes = content.len() as u64;
    bucket.put("ab12", file(&content)).await.unwrap();
    let mut paths: Vec<_> = objects.lock().unwrap().keys().cloned().collect();
    paths.sort();
    assert_eq!(paths, ["/files/prefix/ab12/0", "/files/prefix/ab12/1"]);
    let fetched = bucket.fetch("ab12", bytes).await.unwrap().expect("it is stored");
    let mut read = Vec::new();
    (&fetched).read_to_end(&mut read).unwrap();
    assert!(read == content, "the content differs");
    assert!(bucket.fetch("ab12", bytes - 1).await.is_err(), "it has another length");
    bucket.delete("ab12", bytes).await.unwrap();
    bucket.delete("ab12", bytes).await.unwrap();
    assert!(objects.lock().unwrap().is_empty());
    assert!(bucket.fetch("ab12", bytes).await.unwrap().is_none());
}

#[tokio::test]
async fn a_busy_service_is_asked_again_and_a_refusal_has_its_reason() {
    let (endpoint, objects) = service();
    bucket(&endpoint, "AKIDTEST").put("busy", file(b"x")).await.unwrap();
    assert!(objects.lock().unwrap().contains_key("/files/prefix/busy/0"));
    let refused = bucket(&endpoint, "AKIDOTHER").put("ab12", file(b"x")).await.unwrap_err();
    let refused = refused.to_string();
    assert!(refused.ends_with("answered 403 Forbidden (InvalidAccessKeyId)"), "{refused}");
}

#[test]
fn an_object_is_missing_only_if_its_bucket_exists() {
    let check = |status: StatusCode, code: &str| {
        is_missing_object(status, format!("<Error><Code>{code}</Code></Error>").as_bytes())
    };
    assert!(check(StatusCode::NOT_FOUND, "NoSuchKey"));
    assert!(is_missing_object(StatusCode::NOT_FOUND, b""));
    assert!(!check(StatusCode::NOT_FOUND, "NoSuchBucket"));
    assert!(!check(StatusCode::FORBIDDEN, "AccessDenied"));
}

#[test]
fn an_invalid_place_is_refused() {
    let check = |place: &str, endpoint: Option<&str>, region: &str| {
        let place = BucketLocation::parse(place, endpoint, region);
        place.map(|place| format!("{}{}", place.bucket.base_url(), place.prefix))
    };
    let aws = "https://s3.eu-west-1.amazonaws.com/files/a/b/";
    assert_eq!(check("s3://files/a/b/", None, "eu-west-1").as_deref(), Ok(aws));
    let below = check("s3://files", Some("http://[::1]:9000/s3"), "eu-west-1");
    assert_eq!(below.as_deref(), Ok("http://[::1]:9000/s3/files/"));
    for place in ["s3://", "s3:///a", "s3://a//b", "s3://a/../b", "s3://a?b", "s3://a/ü"] {
        assert!(check(place, None, "eu-west-1").is_err(), "{place}");
    }
    assert!(check("s3://files", None, "").is_err());
    for endpoint in ["ftp://s3.example", "http://u:p@s3.example", "http://s3.example?a=b"] {
        assert!(check("s3://files", Some(endpoint), "eu-west-1").is_err(), "{endpoint}");
    }
}
