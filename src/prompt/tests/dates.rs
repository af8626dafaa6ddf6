//! Templates that print the date: the pins follow the calendar, or in `optimise` keep their day.

use super::*;
use crate::engine::ChatTemplate;
use crate::engine::simulated::Dated;
use crate::request::LayoutMode;

/// 2026-11-30 20:06:10 UTC, a Monday; 20,787 days after 1970 began.
const START: i64 = 1_796_069_170;
const DAY: i64 = 24 * 3600;

fn dated(mode: LayoutMode, now: &Moment) -> Planner {
    let template: Arc<dyn ChatTemplate> = Arc::new(Dated(Template::new(Style::ToolsAfter)));
    let planner = Planner::new(Arc::new(Bytes::new()), template, "model".into(), vec![house()]).unwrap();
    planner.with_layout(Layout { mode, n_context_tokens: 1 << 20, file: None }).with_day(now.clone())
}

#[test]
fn it_is_found_by_rendering_whether_a_template_prints_the_date() {
    assert_eq!(dated(LayoutMode::Off, &NOW).prints(), (true, false));
    assert_eq!(planner(Bytes::new(), Template::new(Style::ToolsAfter), vec![]).prints(), (false, false));
}

#[test]
fn at_midnight_pins_show_the_new_day_and_requests_stand_on_them() {
    for mode in [LayoutMode::Off, LayoutMode::Observe, LayoutMode::Safe] {
        let start = Moment::utc(START);
        let mut planner = dated(mode, &start);
        let old = planner.pins().unwrap();
        assert_eq!(planner.turn_day(&Moment::utc(START + 60)).unwrap(), None, "the same day");
        let tomorrow = Moment::utc(START + DAY);
        let new = planner.turn_day(&tomorrow).unwrap().expect("another day");
        assert_eq!((old.len(), new.len()), (1, 1));
        assert_ne!(old[0].prompt, new[0].prompt);
        let planned = planner.plan(&request("house", &[user("Hi")], &[]), &tomorrow).unwrap();
        assert!(planned.prompt.tokens.starts_with(&new[0].prompt.tokens));
        assert!(planned.prompt.cuts.contains(&new[0].prompt.tokens.len()));
        assert!(show(&planned).contains("Day 20788"));
        assert_eq!(planner.turn_day(&tomorrow).unwrap(), None, "once a day");
    }
}

#[test]
fn the_day_is_the_houses_own() {
    let start = Moment::utc(START);
    // 20:06:10 in Greenwich is 00:06:10 four hours further east.
    let in_the_east = Moment { offset_s: 4 * 3600, zone: "+04".into(), ..start.clone() };
    assert_eq!(in_the_east.day(), start.day() + 1);
    let left = |moment: &Moment| moment.until_midnight().as_secs();
    assert_eq!((left(&start), left(&in_the_east)), (3 * 3600 + 53 * 60 + 50, 23 * 3600 + 53 * 60 + 50));
    assert_eq!(left(&Moment::utc(0)), 24 * 3600);
}

#[test]
fn in_optimise_the_day_of_the_pins_stays_and_the_true_one_stands_before_the_question() {
    let mut planner = dated(LayoutMode::Optimise, &Moment::utc(START));
    let pins = planner.pins().unwrap();
    let tomorrow = Moment::utc(START + DAY);
    assert_eq!(planner.turn_day(&tomorrow).unwrap(), None);
    let first = planner.plan(&request("house", &[user("Hi")], &[]), &tomorrow).unwrap();
    assert!(first.prompt.tokens.starts_with(&pins[0].prompt.tokens));
    insta::assert_snapshot!(show(&first), @r#"
    ⟦<|im_start|>⟧date
    Day 20787⟦<|im_end|>⟧
    ⟦<|im_start|>⟧system
    Be kind.

    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Noted.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    [As of Tuesday 2026-12-01 20:06 UTC:]

    Hi⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Fixed policy: 8
    Fixed tools: 79 ✂
    Document document handbook: 65
    Document document bins: 50 ✂
    Turn question: 2
    Live live: 39
    "#);
    // Of the model itself, too.
    let bare = planner.plan(&request("model", &[user("Hi")], &[]), &tomorrow).unwrap();
    assert!(show(&bare).contains("Day 20787") && show(&bare).contains("[As of Tuesday 2026-12-01 20:06 UTC:]\n\nHi"));
    // Said once a day.
    let later = Moment::utc(START + DAY + 600);
    let messages = [user("Hi"), assistant("Hello."), user("And now?")];
    let second = planner.plan(&request("house", &messages, &[]), &later).unwrap();
    assert_eq!(show(&second).matches("[As of").count(), 1);
    let next_day = Moment::utc(START + 2 * DAY);
    let third = planner.plan(&request("house", &messages, &[]), &next_day).unwrap();
    assert_eq!(show(&third).matches("[As of").count(), 2);
}

#[test]
fn in_optimise_a_start_on_another_day_has_the_same_pins_until_midnight() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("day");
    let start = |days: i64| dated(LayoutMode::Optimise, &Moment::utc(START + days * DAY)).with_day_file(file.clone());
    let first = start(0).pins().unwrap();
    assert_eq!(start(0).pins().unwrap(), first);

    let mut later = start(3);
    assert_eq!(later.pins().unwrap(), first);
    let that_day = Moment::utc(START + 3 * DAY + 600);
    assert_eq!(later.turn_day(&that_day).unwrap(), None, "somebody may be waiting");
    let planned = later.plan(&request("house", &[user("Hi")], &[]), &that_day).unwrap();
    assert!(planned.prompt.tokens.starts_with(&first[0].prompt.tokens));
    let next_day = Moment::utc(START + 4 * DAY);
    let renewed = later.turn_day(&next_day).unwrap().expect("it is past midnight");
    assert_ne!(renewed, first);
    // From then on that is the day that is kept.
    assert_eq!(later.turn_day(&Moment::utc(START + 5 * DAY)).unwrap(), None);
    assert_eq!(start(6).pins().unwrap(), renewed);

    // A clock that was wrong is forgotten, and so is a file that is none.
    let today = start(1).pins().unwrap();
    assert!(today != first && today != renewed);
    std::fs::write(&file, "noise").unwrap();
    assert_eq!(start(0).pins().unwrap(), first);
    assert_eq!(start(1).pins().unwrap(), first);
}

#[test]
fn only_in_optimise_the_day_is_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("day");
    let mut planner = dated(LayoutMode::Safe, &Moment::utc(START)).with_day_file(file.clone());
    planner.pins().unwrap();
    assert!(!file.exists());
}

#[test]
fn a_request_that_wants_the_date_left_alone_has_the_true_one() {
    let mut planner = dated(LayoutMode::Optimise, &Moment::utc(START));
    let mut asked = request("house", &[user("Hi")], &[]);
    asked.layout = Some(LayoutMode::Off);
    let planned = planner.plan(&asked, &Moment::utc(START + DAY)).unwrap();
    assert!(show(&planned).contains("Day 20788") && !show(&planned).contains("[As of"));
}
