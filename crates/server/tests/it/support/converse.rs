//! A client that answers what it is asked.

use serde_json::{Value, json};

use super::{Client, MODERN, Wire};

/// Makes a request and answers whatever is asked meanwhile; its answer, and what was asked.
#[track_caller]
pub(crate) fn converse(
    client: &mut Client,
    method: &str,
    params: Value,
    answer: impl Fn(&Value) -> Value,
) -> (Value, Vec<Value>) {
    let mut asked = Vec::new();
    if client.revision == MODERN {
        let mut params = params;
        for _round in 0..10 {
            let mut told = client.ask(method, params.clone());
            if told["result"]["resultType"] != "input_required" {
                return (told, asked);
            }
            let mut responses = json!({});
            for (key, request) in told["result"]["inputRequests"].as_object().into_iter().flatten()
            {
                responses[key] = answer(request);
                asked.push(request.clone());
            }
            params["inputResponses"] = responses;
            if let Some(state) = told["result"].get_mut("requestState") {
                params["requestState"] = state.take();
            }
        }
        panic!("it asks without end: {asked:?}");
    }
    let message = client.request(method, params);
    let said = |request: &Value| {
        let id = &request["id"];
        let result = answer(request);
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    };
    if let Wire::Stdio(stdio) = &mut client.wire {
        stdio.send(&message);
        loop {
            let heard = stdio.receive();
            match (heard.get("method"), heard.get("id")) {
                (Some(_), Some(_)) => {
                    stdio.send(&said(&heard));
                    asked.push(heard);
                }
                (None, Some(id)) if *id == message["id"] => return (heard, asked),
                _ => {}
            }
        }
    }
    let post = client.post(&message);
    let Wire::Http(served) = &client.wire else { unreachable!() };
    let mut connection = served.connect();
    connection.post(&post);
    let head = connection.head();
    if !head.is_stream() {
        let length: usize = head.header("content-length").unwrap().parse().unwrap();
        return (serde_json::from_slice(&connection.take(length)).unwrap(), asked);
    }
    while let Some(heard) = connection.event() {
        match (heard.get("method"), heard.get("id")) {
            (Some(_), Some(_)) => {
                let response = client.response(&said(&heard));
                assert_eq!((response.status, response.body.len()), (202, 0), "{response:?}");
                asked.push(heard);
            }
            (None, Some(id)) if *id == message["id"] => return (heard, asked),
            _ => {}
        }
    }
    panic!("the stream ended without the answer");
}
