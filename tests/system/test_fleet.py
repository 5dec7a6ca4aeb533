"""Two servers, one leader: the follower's own daemon takes the versions that the leader makes live, verified, and goes back with it; what is said to the
follower itself holds it; a word that was missed is found; a second leader ends the first. The answers are the same at both all the while."""
import json

import pytest
from conftest import Stack, poll
from test_operate import submit


@pytest.fixture
def follower(request, stack, toy, tmp_path):
    s = Stack(tmp_path, toy)
    yield s
    if getattr(request.node, "failed_call", False):
        print(s.logs())
    s.close()


def said(s, word, seconds=60):
    have = lambda: [e["text"] for e in s.call("daemon", "Tail", last=200)["events"]]
    assert poll(seconds, lambda: any(word in t for t in have()), 0.3), (word, have())


def is_at(s, version, seconds=60):
    assert poll(seconds, lambda: s.status("daemon").get("live") == version == s.status("serve").get("live"), 0.3), (version, s.status("daemon"))


def states(s):
    return {v["version"]: v["state"] for v in s.ctl_json("versions")["versions"]}


def test_a_fleet(stack, follower, kafka):
    lead, broker = stack, kafka
    follow = {"rollout__interval_s": 0, "fleet__role": "follower", "fleet__versions": lead.store / "versions"}
    lead.start_serve(lead.toy(71))
    follower.start_serve(lead.model)
    lead.start_daemon(broker.address, rollout__interval_s=0, fleet__role="leader")
    follower.start_daemon(broker.address, **follow)
    rc, out, err = lead.ctl("--json", "topics", "--create")  # the topic comes late
    made = {t["topic"]: t for t in json.loads(out)["topics"]}
    assert made["redraft.events"]["config"]["cleanup.policy"] == "compact", (made, err)
    said(lead, "leads the fleet (epoch 1)")

    def both_answer():
        one, two = (s.chat("Which one?", temperature=0.5, seed=3) for s in (lead, follower))
        assert one.ok and one.same_text(two)
    numbers = [submit(lead, 1)]
    assert lead.ctl("promote", numbers[0])[0] == 0
    is_at(follower, numbers[0])
    both_answer()
    sha = lambda s: next(x["weights_sha"] for x in s.status("serve")["slots"] if x["version"] == s.status("serve")["live"])
    assert sha(lead) == sha(follower)
    rc, _, err = follower.ctl("--json", "promote", 99)
    assert rc == 1 and "BadVersion" in err
    with pytest.raises(Exception, match="follows a fleet"):
        submit(follower, 7)
    numbers.append(submit(lead, 2, numbers[0]))
    assert lead.ctl("promote", numbers[1])[0] == 0
    is_at(follower, numbers[1])
    follower.children["daemon"].stop()
    numbers.append(submit(lead, 3, numbers[1]))
    assert lead.ctl("promote", numbers[2])[0] == 0
    follower.again("daemon")  # a word that was missed
    is_at(follower, numbers[2])
    both_answer()
    assert lead.ctl("rollback")[0] == 0
    is_at(follower, numbers[1])
    assert states(follower)[numbers[2]] == "quarantined" and states(follower)[numbers[1]] == "live"
    both_answer()
    # what is said to the follower itself
    assert follower.ctl("rollback")[0] == 0
    is_at(follower, numbers[0])
    assert follower.status("daemon")["hold"] and lead.status("daemon")["live"] == numbers[1]
    numbers.append(submit(lead, 4, numbers[1]))
    assert lead.ctl("promote", numbers[3])[0] == 0
    said(follower, "this server is held at")
    assert follower.status("daemon")["live"] == numbers[0] and follower.status("daemon")["fleet"]["behind"]
    assert "not there yet" in follower.ctl("status")[1]
    assert follower.ctl("release")[0] == 0
    is_at(follower, numbers[3])
    both_answer()
    # another leads from now on
    follower.children["daemon"].stop()
    follower.start_daemon(broker.address, rollout__interval_s=0, fleet__role="leader")
    said(follower, "leads the fleet from now on (epoch 2)")
    said(lead, "nobody is told of this one's switches any more")
    assert json.loads(lead.ctl("--json", "status")[1])["fleet"]["role"] == "was leader"
    assert lead.ctl("rollback")[0] == 0 and lead.status("serve")["live"] == numbers[1]  # alone, it is rolled back as ever
    both_answer()
