//! OpenAI's responses over real sockets: events that add up to the whole response, items that follow each other.

use serde_json::{Value, json};

use super::speaking::saying;
use super::*;

const RESPONSES: &str = "/v1/responses";

/// A question with `fields` beside it.
fn ask(fields: Value) -> String {
    let mut body = json!({ "model": "house", "input": "is the oven on?", "store": false });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

/// The data of each event, whose name is that of its data, counted from 0.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = reply.body.split_terminator("\n\n").enumerate().map(|(index, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        assert_eq!(data["sequence_number"], index, "{event}");
        data
    });
    events.collect()
}

/// The last event's response; what came before it must add up to that: one item after the other, each one's deltas to its text.
fn gathered(reply: &Reply) -> Value {
    let events = events(reply);
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
    assert_eq!(events[0]["response"]["output"], json!([]));
    let (last, rest) = events[2..].split_last().unwrap();
    let (mut open, mut grown, mut output) = (None, String::new(), Vec::new());
    for event in rest {
        let kind = event["type"].as_str().unwrap();
        assert_eq!(event["output_index"], output.len(), "{event}");
        match kind {
            "response.output_item.added" => {
                assert_eq!(open.replace(event["item"]["id"].clone()), None, "one item after the other: {event}");
                assert_eq!(event["item"]["status"], "in_progress");
                grown.clear();
                continue;
            }
            "response.output_item.done" => {
                let item = event["item"].clone();
                assert_eq!(open.take().as_ref(), Some(&item["id"]), "{event}");
                let text = item.get("arguments").unwrap_or(&item["content"][0]["text"]);
                assert_eq!(text, &json!(grown), "{event}");
                output.push(item);
                continue;
            }
            _ => assert_eq!(open.as_ref(), Some(&event["item_id"]), "{event}"),
        }
        match (event.get("delta"), event.get("part"), kind) {
            (Some(delta), ..) => grown += delta.as_str().unwrap(),
            (_, Some(part), "response.content_part.added") => assert_eq!(part["text"], ""),
            (_, Some(part), _) => assert_eq!(part["text"], grown),
            (..) => assert_eq!(event.get("arguments").or(event.get("text")), Some(&json!(grown)), "{event}"),
        }
    }
    assert_eq!(open, None);
    let response = last["response"].clone();
    assert_eq!(last["type"], format!("response.{}", response["status"].as_str().unwrap()));
    assert_eq!(response["output"], json!(output));
    response
}

/// Without what differs from request to request.
fn told(response: &Value) -> Value {
    let items = response["output"].as_array().unwrap().iter().map(|item| match item["type"].as_str().unwrap() {
        "reasoning" => json!({ "thought": item["content"][0]["text"] }),
        "message" => json!({ "said": item["content"][0]["text"], "status": item["status"] }),
        "function_call" => {
            assert!(item["call_id"].as_str().is_some_and(|id| !id.is_empty()), "{item}");
            json!({ "called": [item["name"], item["arguments"]] })
        }
        other => panic!("{other}"),
    });
    json!({
        "items": items.collect::<Vec<_>>(), "status": response["status"], "why": response["incomplete_details"]["reason"],
    })
}

#[tokio::test]
async fn a_response_is_the_same_whole_and_event_by_event() {
    let said = |text: &str, status: &str| json!({ "said": text, "status": status });
    for (pieces, finish, items, status, why) in [
        (
            &["The oven ", "is off."][..],
            Finish::Stop,
            json!([said("The oven is off.", "completed")]),
            "completed",
            Value::Null,
        ),
        (&[], Finish::Stop, json!([said("", "completed")]), "completed", Value::Null),
        (
            &["The oven"],
            Finish::Length,
            json!([said("The oven", "incomplete")]),
            "incomplete",
            json!("max_output_tokens"),
        ),
        (
            &["<t>hm", "m</t>", "Let me see.", "<c>turn_on {\"name\"", ":\"Oven\"}</c>", "<c>live {}</c>"],
            Finish::Stop,
            json!([
                { "thought": "hmm" },
                said("Let me see.", "completed"),
                { "called": ["turn_on", "{\"name\":\"Oven\"}"] },
                { "called": ["live", "{}"] },
            ]),
            "completed",
            Value::Null,
        ),
    ] {
        let expected = json!({ "items": items, "status": status, "why": why });
        let running = start(saying(pieces, finish)).await;
        let streamed = running.post_to(RESPONSES, &ask(json!({ "stream": true }))).await;
        assert_eq!(told(&gathered(&streamed)), expected, "{pieces:?}");
        let whole = running.post_to(RESPONSES, &ask(json!({}))).await;
        assert_eq!(told(&whole.json()), expected, "{pieces:?}");
        for response in [gathered(&streamed), whole.json()] {
            let usage = &response["usage"];
            let details = json!({ "cached_tokens": 9, "cache_write_tokens": 3 });
            assert_eq!((&usage["input_tokens"], &usage["input_tokens_details"]), (&json!(12), &details));
            assert_eq!((&usage["output_tokens"], &usage["total_tokens"]), (&json!(6), &json!(18)));
            assert_eq!((&usage["hob"]["cause"], &response["object"]), (&json!("appended"), &json!("response")));
        }
        assert_eq!(whole.header("x-hob-cache"), Some("reused=9; of=12; restored=0; cause=appended; layout=off"));
    }
}

#[tokio::test]
async fn a_response_repeats_what_was_asked() {
    let running = start(saying(&["Off."], Finish::Stop)).await;
    let asked =
        json!({ "instructions": "Be brief.", "metadata": { "room": "hall" }, "temperature": 0.5, "top_p": null });
    let response = running.post_to(RESPONSES, &ask(asked)).await.json();
    assert_eq!(
        [&response["instructions"], &response["metadata"], &response["temperature"], &response["top_p"]],
        [&json!("Be brief."), &json!({ "room": "hall" }), &json!(0.5), &json!(1.0)]
    );
    assert_eq!((&response["store"], &response["tools"]), (&json!(false), &json!([])));
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_a_failed_response() {
    let events_of = [Event::Admitted(CACHE), Event::Text("The oven".into()), Event::Failed("the model stopped".into())];
    let running = start(Script { events: events_of.into(), ..Script::default() }).await;
    let reply = running.post_to(RESPONSES, &ask(json!({ "stream": true }))).await;
    let events = events(&reply);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"]["message"], "the model stopped");
    // Not streamed it is a status.
    let reply = running.post_to(RESPONSES, &ask(json!({}))).await;
    assert_eq!((reply.status, &reply.json()["error"]["message"]), (500, &json!("the model stopped")));
}

#[tokio::test]
async fn what_needs_a_store_is_refused_by_name() {
    let running = start(saying(&["Off."], Finish::Stop)).await;
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("prompt", json!({ "id": "pmpt_1" })),
        ("background", json!(true)),
        ("input", json!([{ "type": "item_reference", "id": "msg_1" }])),
    ] {
        let reply = running.post_to(RESPONSES, &ask(json!({ field: value }))).await;
        let param = reply.json()["error"]["param"].as_str().unwrap().to_owned();
        assert_eq!((reply.status, param.starts_with(field)), (400, true), "{}", reply.body);
    }
}

#[tokio::test]
async fn embeddings_are_refused_in_plain_words() {
    let running = start(Script::default()).await;
    let reply = running.post_to("/v1/embeddings", r#"{"model":"house","input":"hi"}"#).await;
    let error = &reply.json()["error"];
    assert_eq!((reply.status, &error["param"]), (400, &json!("model")));
    assert!(error["message"].as_str().unwrap().contains("no embeddings"), "{error}");
}
