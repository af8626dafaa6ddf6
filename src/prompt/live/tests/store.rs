//! The file, and the bounds.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn talk(house: &mut House) -> Laid<'static> {
    house.now += 10;
    let text = format!("This is a rule that stands here for long.\nIt is {} now.", clock(house.now));
    house.lay(&[system(text), user("Hello")])
}

#[test]
fn what_was_saved_is_loaded_and_only_the_owner_may_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/live");
    let mut house = House::new(Mode::Safe);
    let laid = talk(&mut house);
    crate::prompt::store::save(&path, &house.live).unwrap();
    crate::prompt::store::save(&path, &house.live).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    house.live = crate::prompt::store::load(&path).unwrap();
    house.now -= 10;
    assert_eq!(talk(&mut house).messages, laid.messages);
}

#[test]
fn a_file_that_is_not_whole_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    assert!(crate::prompt::store::load::<Live>(&path).unwrap().families.is_empty());
    let mut house = House::new(Mode::Safe);
    talk(&mut house);
    crate::prompt::store::save(&path, &house.live).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], reason: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = crate::prompt::store::load::<Live>(&path).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    refused(b"", "no head");
    refused(&whole[..whole.len() / 2], "checksum");
    refused(&whole[..whole.len() - 1], "checksum");
    refused(&[0xff; 300], "no head");
    refused(b"hob live 0 abc\n{}", "another version");
    let body = b"{\"next_family\":0,\"families\":3,\"records\":[]}";
    refused(&[format!("hob live 2 {}\n", blake3::hash(body).to_hex()).as_bytes(), body].concat(), "invalid type");
}

#[test]
fn records_stay_within_their_bound_and_their_loss_costs_no_truth() {
    let mut house = House::new(Mode::Safe);
    house.live.records = Records::new(20_000);
    let mut chat = Vec::new();
    for turn in 0..100 {
        house.now += 100;
        chat.push(user(format!("Question {turn}")));
        let text = format!("This is a rule that stands here for long.\nIt is {} now.", clock(house.now));
        let sent: Vec<Message> = [system(text)].into_iter().chain(chat.clone()).collect();
        // Once: what is over the bound is lost when the request is laid, and with it the bytes of a retry.
        let laid = house.lay_once(&sent);
        check(&sent, &laid, house.now, true);
        chat.push(assistant("Well."));
        assert!(house.live.records.n_bytes() <= 20_000);
    }
    let held: Vec<RecordId> = house.live.records.iter().map(|(id, _)| id).collect();
    assert!(held.len() > 10);
    held.into_iter().for_each(|id| house.live.records.remove(id));
    assert_eq!(house.live.records.n_bytes(), 0);
}
