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
    house.live.n_bytes_max = 20_000;
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
        let n_evidence_bytes: usize = house.live.families.iter().map(Family::n_bytes).sum();
        assert!(n_evidence_bytes > 0 && house.live.records.n_bytes() + n_evidence_bytes <= 20_000);
    }
    let held: Vec<RecordId> = house.live.records.iter().map(|(id, _)| id).collect();
    assert!(held.len() > 10);
    held.into_iter().for_each(|id| house.live.records.remove(id));
    assert_eq!(house.live.records.n_bytes(), 0);
}

#[test]
fn evidence_stays_within_its_part_and_the_least_used_gives_way() {
    let mut house = House::new(Mode::Safe);
    house.live.n_bytes_max = 400_000;
    let ask = |house: &mut House, text: usize| {
        house.now += 1;
        // Texts with no line in common, each with a line that changes.
        let lines: String = (0..100).map(|line| format!("Rule {line} of text {text}.\n")).collect();
        house.lay(&[system(format!("{lines}- mood: {}", house.now)), user("Hello")]);
    };
    for text in 0..30 {
        ask(&mut house, text);
        ask(&mut house, 0);
    }
    let n_bytes: usize = house.live.families.iter().map(Family::n_bytes).sum();
    assert!((50_000..=100_000).contains(&n_bytes), "{n_bytes}");
    assert!(house.live.families.iter().any(|family| family.id == 0), "what is used stays");
    // What is held does not outlive a restart.
    house.live.forget_held();
    house.live.families.iter_mut().for_each(Family::weigh);
    let weighed: Vec<usize> = house.live.families.iter().map(Family::n_bytes).collect();
    let folder = tempfile::tempdir().unwrap();
    crate::prompt::store::save(&folder.path().join("live"), &house.live).unwrap();
    let loaded: Live = crate::prompt::store::load(&folder.path().join("live")).unwrap();
    assert_eq!(loaded.families.iter().map(Family::n_bytes).collect::<Vec<_>>(), weighed);
}

#[test]
fn a_text_of_very_many_lines_is_left_alone_and_nothing_is_kept_of_it() {
    let mut house = House::new(Mode::Safe);
    let text = |n_lines: usize| format!("{}It is {} now.", "A rule.\n".repeat(n_lines), clock(START));
    let laid = house.lay(&[system(text(N_BLOCKS_MAX)), user("Late?")]);
    assert_eq!((laid.cause, house.live.is_empty()), (Cause::Untouched, true));
    assert_eq!(house.lay(&[system(text(N_BLOCKS_MAX - 1)), user("Late?")]).cause, Cause::New);
}

#[test]
fn what_one_owner_taught_is_forgotten_without_the_others() {
    let mut house = House::new(Mode::Safe);
    let owners = [Owner::Private([1; 32]), Owner::Private([2; 32])];
    for owner in owners {
        house.owner = owner;
        house.lay(&[system(format!("A rule.\nIt is {} now.", clock(house.now))), user("Hello")]);
    }
    assert!(house.live.forget(Some(owners[0])));
    assert_eq!((house.live.families.len(), house.live.records.len()), (1, 1));
    assert!(house.live.families.iter().all(|family| family.owner == owner_digest(owners[1])));
    assert!(house.live.records.iter().all(|(_, record)| record.owner == owner_digest(owners[1])));
    assert!(!house.live.forget(Some(owners[0])));
    assert!(house.live.forget(None) && house.live.is_empty());
}
