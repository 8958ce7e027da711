// Lock-step control of a Gazebo 11 world from another process.
//
// The client owns the clock: the world advances only inside a step request. Requests are served in
// the world's own update thread, in the WorldUpdateEnd event, so nothing spins while it waits.
//
// Transport: one stream socket, inherited; its number is in GZ_LOCKSTEP_FD. Little-endian frames:
//   request  u32 length | u8 what | body         reply  u32 length | u8 status | body
//   'H' hello                                    -> JSON: joints, efforts, links, models, dt, engine
//   'R' reset  u64 seed | f64 q[J] | f64 qd[J] | f64 pose[M][7]  -> state
//   'S' step   u32 iterations | f64 effort[J]                    -> state
//   state  u64 iterations | f64 time | f64 q[J] | f64 qd[J] | f64 link[L][13]
//   A pose is x y z and a quaternion w x y z; x = NaN leaves the model where the world put it.
//   A link is a pose, linear velocity and angular velocity, all in the world's frame.
//   status 0: done; 1: refused, the body says why, and nothing has changed.
//
// The process ends when the socket's other end is closed, or its parent (GZ_LOCKSTEP_PARENT) is
// gone. Not by PR_SET_PDEATHSIG: that fires when the *thread* that started the process ends.
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gazebo/common/Console.hh>    // single headers: the collecting ones
#include <gazebo/common/Events.hh>     // need those of video and graphics
#include <gazebo/common/Plugin.hh>
#include <gazebo/physics/Joint.hh>
#include <gazebo/physics/Link.hh>
#include <gazebo/physics/Model.hh>
#include <gazebo/physics/PhysicsEngine.hh>
#include <gazebo/physics/World.hh>
#include <ignition/math/Rand.hh>

namespace gazebo
{
// A joint's own coordinate, taken from the poses of its links alone.
struct Axis
{
  explicit Axis(physics::JointPtr _joint)
    : joint(_joint), parent(_joint->GetParent()), child(_joint->GetChild()),
      revolute(_joint->HasType(physics::Base::HINGE_JOINT))
  {
    this->rest = this->Relative().Inverse();
    this->local = this->child->WorldPose().Rot().RotateVectorReverse(
        _joint->GlobalAxis(0));
    this->moved.push_back(this->child);         // the child and all below it
    for (size_t k = 0; k < this->moved.size(); ++k)
      for (auto const &link : this->moved[k]->GetChildJointsLinks())
        if (std::find(this->moved.begin(), this->moved.end(), link) ==
            this->moved.end())
          this->moved.push_back(link);
  }

  ignition::math::Quaterniond Relative() const
  {
    auto own = this->child->WorldPose().Rot();
    return this->parent ? this->parent->WorldPose().Rot().Inverse() * own : own;
  }

  void Update()                                 // after each iteration
  {
    if (!this->revolute)
    {
      this->position = this->joint->Position(0);
      return;
    }
    auto turned = this->rest * this->Relative();
    double angle = 2 * std::atan2(turned.X() * this->local.X() +
                                  turned.Y() * this->local.Y() +
                                  turned.Z() * this->local.Z(), turned.W());
    this->position += std::remainder(angle - this->position, 2 * M_PI);
  }

  // Not Joint::SetPosition(): it turns by the difference to ODE's angle, which still counts the
  // whole turns of the last episode, and rounding (1e-15) makes the next one another episode.
  void Place(double _position)                  // from the world file's own pose
  {
    auto axis = this->joint->GlobalAxis(0);
    auto anchor = this->joint->Anchor(0);
    ignition::math::Quaterniond turn(axis, _position);
    for (auto const &link : this->moved)
    {
      auto pose = link->WorldPose();
      if (this->revolute)
        pose.Set(anchor + turn * (pose.Pos() - anchor), turn * pose.Rot());
      else
        pose.Pos() += axis * _position;
      link->SetWorldPose(pose);
    }
    this->position = _position;
    this->Update();
  }

  physics::JointPtr joint;
  physics::LinkPtr parent, child;
  bool revolute;
  ignition::math::Quaterniond rest;
  ignition::math::Vector3d local;
  std::vector<physics::LinkPtr> moved;
  double position = 0;
};

class LockstepPlugin : public WorldPlugin
{
  public: void Load(physics::WorldPtr _world, sdf::ElementPtr) override
  {
    const char *fd = getenv("GZ_LOCKSTEP_FD");
    const char *parent = getenv("GZ_LOCKSTEP_PARENT");
    if (!fd || !parent)
    {
      gzerr << "lockstep: GZ_LOCKSTEP_FD or GZ_LOCKSTEP_PARENT is missing\n";
      return;
    }
    this->fd = atoi(fd);
    std::thread(&LockstepPlugin::Watch, this->fd, atoi(parent)).detach();

    this->world = _world;
    for (auto const &model : _world->Models())
    {
      for (auto const &joint : model->GetJoints())
        if (joint->HasType(physics::Base::HINGE_JOINT) ||
            joint->HasType(physics::Base::SLIDER_JOINT))
          this->axes.push_back(Axis(joint));    // parents come first
      if (model->IsStatic())
        continue;
      this->models.push_back(model);
      for (auto const &link : model->GetLinks())
        this->links.push_back(link);
    }
    this->effort.assign(this->axes.size(), 0.0);
    this->ode = _world->Physics()->GetType() == "ode";
    this->begin = event::Events::ConnectWorldUpdateBegin(
        std::bind(&LockstepPlugin::OnBegin, this));
    this->end = event::Events::ConnectWorldUpdateEnd(
        std::bind(&LockstepPlugin::OnEnd, this));
  }

  // ---- life ----------------------------------------------------------------
  // A clean shutdown of the world from its own thread deadlocks.
  private: [[noreturn]] static void Leave() { _exit(0); }

  private: static void Watch(int _fd, pid_t _parent)
  {
    for (;;)
    {
      pollfd p{_fd, POLLRDHUP, 0};
      if (poll(&p, 1, 200) > 0 || getppid() != _parent)
        Leave();
    }
  }

  // ---- transport -----------------------------------------------------------
  private: void Read(void *_into, size_t _size)
  {
    char *p = static_cast<char *>(_into);
    while (_size)
    {
      ssize_t k = recv(this->fd, p, _size, 0);
      if (k < 0 && errno == EINTR)
        continue;
      if (k <= 0)
        Leave();
      p += k;
      _size -= k;
    }
  }

  private: void Reply(uint8_t _status, const std::string &_body)
  {
    this->out.clear();
    Put<uint32_t>(this->out, _body.size() + 1);
    Put<uint8_t>(this->out, _status);
    this->out += _body;
    size_t done = 0;
    while (done < this->out.size())
    {
      ssize_t k = send(this->fd, this->out.data() + done,
                       this->out.size() - done, MSG_NOSIGNAL);
      if (k < 0 && errno == EINTR)
        continue;
      if (k <= 0)
        Leave();
      done += k;
    }
  }

  private: template <typename T> static void Put(std::string &_s, T _v)
  { _s.append(reinterpret_cast<const char *>(&_v), sizeof(T)); }

  private: static std::vector<double> Doubles(const char *_p, size_t _count)
  {
    std::vector<double> values(_count);
    memcpy(values.data(), _p, 8 * _count);
    return values;
  }

  private: static bool Finite(const std::vector<double> &_values)
  {
    return std::all_of(_values.begin(), _values.end(),
                       [](double v) { return std::isfinite(v); });
  }

  // ---- replies -------------------------------------------------------------
  private: std::string State()
  {
    std::string s;
    Put<uint64_t>(s, this->world->Iterations());
    Put<double>(s, this->world->SimTime().Double());
    for (auto const &axis : this->axes)
      Put<double>(s, axis.position);
    for (auto const &axis : this->axes)
      Put<double>(s, axis.joint->GetVelocity(0));
    for (auto const &link : this->links)
    {
      auto p = link->WorldPose();
      auto v = link->WorldLinearVel();
      auto w = link->WorldAngularVel();
      for (double d : {p.Pos().X(), p.Pos().Y(), p.Pos().Z(), p.Rot().W(),
                       p.Rot().X(), p.Rot().Y(), p.Rot().Z(), v.X(), v.Y(),
                       v.Z(), w.X(), w.Y(), w.Z()})
        Put<double>(s, d);
    }
    return s;
  }

  private: template <typename Items, typename Show>
  static void List(std::ostream &_o, const char *_key, const Items &_items,
                   Show _show)
  {
    _o << ",\"" << _key << "\":[";
    const char *comma = "";
    for (auto const &item : _items)
    {
      _o << comma << _show(item);
      comma = ",";
    }
    _o << "]";
  }

  private: template <typename Item> static std::string Name(const Item &_item)
  {
    std::ostringstream o;
    o << std::quoted(_item->GetScopedName());
    return o.str();
  }

  private: std::string Hello()
  {
    std::ostringstream o;
    o << "{\"protocol\":2,\"dt\":" << this->world->Physics()->GetMaxStepSize()
      << ",\"engine\":\"" << this->world->Physics()->GetType() << "\"";
    List(o, "joints", this->axes, [](auto &a) { return Name(a.joint); });
    List(o, "efforts", this->axes,
         [](auto &a) { return a.joint->GetEffortLimit(0); });
    List(o, "links", this->links, [](auto &l) { return Name(l); });
    List(o, "models", this->models, [](auto &m) { return Name(m); });
    o << "}";
    return o.str();
  }

  // ---- requests ------------------------------------------------------------
  private: void Reset(uint64_t _seed, const std::vector<double> &_joints,
                      const std::vector<double> &_poses)
  {
    std::fill(this->effort.begin(), this->effort.end(), 0.0);
    ignition::math::Rand::Seed(static_cast<unsigned>(_seed));
    this->world->Physics()->SetSeed(static_cast<uint32_t>(_seed));
    this->world->Reset();                       // poses, velocities, time, ODE
    for (size_t i = 0; i < this->models.size(); ++i)
    {
      const double *p = &_poses[7 * i];
      if (std::isfinite(p[0]))
        this->models[i]->SetWorldPose(
            {{p[0], p[1], p[2]}, {p[3], p[4], p[5], p[6]}});
    }
    const size_t count = this->axes.size();
    for (size_t i = 0; i < count; ++i)
      this->axes[i].Place(_joints[i]);
    for (size_t i = 0; i < count; ++i)          // relative to a moving parent
      this->axes[i].joint->SetVelocity(0, _joints[count + i]);
    // ODE's solver starts from the last iteration's constraint forces, which World::Reset() keeps:
    // leave them out of the first iteration, or an episode depends on the one before it. Not 0:
    // that also stops it from storing this iteration's, so that the old ones come back later.
    this->Warm(1e-300);
    this->fresh = true;
  }

  private: void Warm(double _factor)
  {
    if (this->ode)
      this->world->Physics()->SetParam("warm_start_factor", _factor);
  }

  // Serves one request; returns the iterations that it asks for, 0 for none.
  private: uint32_t Serve()
  {
    uint32_t length = 0;
    this->Read(&length, 4);
    if (length < 1 || length > (1u << 20))
      Leave();
    this->in.resize(length);
    this->Read(&this->in[0], length);
    const char *p = this->in.data() + 1;
    const size_t size = length - 1, nj = this->axes.size();
    const size_t nm = this->models.size();
    if (this->in[0] == 'H')
    {
      this->Reply(0, this->Hello());
      return 0;
    }
    if (this->in[0] == 'R' && size == 8 + 16 * nj + 56 * nm)
    {
      uint64_t seed = 0;
      memcpy(&seed, p, 8);
      auto joints = Doubles(p + 8, 2 * nj);
      if (Finite(joints))
      {
        this->Reset(seed, joints, Doubles(p + 8 + 16 * nj, 7 * nm));
        this->Reply(0, this->State());
        return 0;
      }
    }
    if (this->in[0] == 'S' && size == 4 + 8 * nj)
    {
      uint32_t iterations = 0;
      memcpy(&iterations, p, 4);
      auto wanted = Doubles(p + 4, nj);
      if (iterations >= 1 && iterations <= 1000000 && Finite(wanted))
      {
        this->effort = wanted;
        return iterations;
      }
    }
    this->Reply(1, "unknown request, wrong size, or a number that is not finite");
    return 0;
  }

  // ---- the world's clock ---------------------------------------------------
  // ODE clears forces after each iteration: apply them before every one.
  private: void OnBegin()
  {
    for (size_t i = 0; i < this->axes.size(); ++i)
      this->axes[i].joint->SetForce(0, this->effort[i]);
  }

  private: void OnEnd()
  {
    if (this->fresh)
    {
      this->fresh = false;
      this->Warm(0.5);                          // Gazebo's own value
    }
    for (auto &axis : this->axes)
      axis.Update();
    if (this->left > 0 && --this->left > 0)
      return;
    if (this->started)
      this->Reply(0, this->State());
    this->started = true;                       // the iteration before the first request
    while ((this->left = this->Serve()) == 0) {}
  }

  private: physics::WorldPtr world;
  private: std::vector<Axis> axes;
  private: std::vector<physics::LinkPtr> links;
  private: std::vector<physics::ModelPtr> models;
  private: std::vector<double> effort;
  private: std::string in, out;
  private: event::ConnectionPtr begin, end;
  private: int fd = -1;
  private: uint32_t left = 0;
  private: bool started = false, fresh = false, ode = false;
};
GZ_REGISTER_WORLD_PLUGIN(LockstepPlugin)
}
